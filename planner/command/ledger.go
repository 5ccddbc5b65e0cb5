package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/view"
)

// errFaulty ends a check that found something, after it was printed.
var errFaulty = &Exit{Code: ExitError, Err: errors.New("the ledger is not right; docs/accounting.md says what to do")}

// ledgerPath finds a ledger's file: the flag's, or that of a configuration.
func ledgerPath(file string, configs []string) (string, error) {
	switch {
	case file != "" && len(configs) > 0:
		return "", errors.New("-file and -config exclude each other")
	case file != "":
		return file, nil
	case len(configs) == 0:
		return "", nil
	}
	live, err := config.Open(configs...)
	if err != nil {
		return "", err
	}
	dir := live.Current().DataDir
	if dir == "" {
		return "", errors.New("the configuration has no data_dir: the planner's ledger is a temporary file that ends with it")
	}
	return filepath.Join(dir, accounting.FileName), nil
}

func ledgerBackup() Command {
	var file string
	var configs list
	return Command{
		Synopsis: "Copy the ledger to a new file",
		Usage:    "ledger backup [options] <target>",
		About:    "Copies a ledger, also while a planner writes it, to a new file that is whole and compact. To restore it, stop the planner, put the copy in the place of ledger.db in its data_dir, remove ledger.db-wal and ledger.db-shm, and start the planner: it books what is missing from what Nomad still has.",
		Least:    1, Most: 1,
		Flags: func(f *Flags) {
			f.StringVar(&file, "file", "", "`File` of the ledger.")
			f.Var(&configs, "config", "`File` or folder of the planner's configuration, whose data_dir has the ledger; may be given several times.")
		},
		Run: func(c *Call, args []string) error {
			path, err := ledgerPath(file, configs)
			if err != nil {
				return err
			}
			if path == "" {
				return errors.New("which ledger: -file or -config says it")
			}
			if err := accounting.Backup(c.Context, path, args[0]); err != nil {
				return err
			}
			r, err := accounting.Verify(c.Context, args[0])
			if err != nil {
				return err
			}
			w := c.screen()
			w.line("%s: %d attempts, %d allocations, %d card-seconds, booked up to %s", args[0], r.Attempts, r.Allocations, r.CardSeconds, r.Booked.Format("2006-01-02 15:04Z"))
			if _, err := fmt.Fprint(c.Stdout, w.b.String()); err != nil {
				return err
			}
			if !r.OK() {
				for _, f := range r.Findings {
					c.say("%s: %s", f.What, f.Text)
				}
				return errFaulty
			}
			return nil
		},
	}
}

func ledgerVerify() Command {
	var file string
	var configs list
	return Command{
		Synopsis: "Check the ledger against itself and against Nomad",
		Usage:    "ledger verify [options]",
		About: "Without -file and -config it asks the planner (an operator's token), which checks its ledger and holds it against every allocation that Nomad still has of gangs: what each ran, to the second. With one of them it checks the file alone, also while a planner writes it: SQLite's structure, that the booked hours are what the facts say, and that the sums are those of the hours.\n\n" +
			"The exit code is 0 where nothing is wrong.",
		API: true, Data: true,
		Flags: func(f *Flags) {
			f.StringVar(&file, "file", "", "`File` of a ledger, to check it alone.")
			f.Var(&configs, "config", "`File` or folder of the planner's configuration, whose data_dir has the ledger; may be given several times.")
		},
		Run: func(c *Call, _ []string) error {
			path, err := ledgerPath(file, configs)
			if err != nil {
				return err
			}
			var check view.LedgerCheck
			if path == "" {
				api, err := c.client()
				if err != nil {
					return err
				}
				if check, err = api.CheckLedger(c.Context); err != nil {
					return err
				}
			} else {
				r, err := accounting.Verify(c.Context, path)
				if err != nil {
					return err
				}
				check = view.LedgerCheck{Path: r.Path, Schema: r.Schema, Booked: r.Booked, Attempts: r.Attempts, Allocations: r.Allocations, CardSeconds: r.CardSeconds, Inexact: r.Inexact, OK: r.OK(), Findings: []string{}}
				for _, f := range r.Findings {
					check.Findings = append(check.Findings, f.What+": "+f.Text)
				}
			}
			if err := c.print(check, func(w *screen) { w.ledger(check, path == "") }); err != nil {
				return err
			}
			if !check.OK {
				return errFaulty
			}
			return nil
		},
	}
}

func (s *screen) ledger(k view.LedgerCheck, nomad bool) {
	against := ""
	if nomad {
		against = fmt.Sprintf("%d allocations of gangs, %d card-seconds", k.NomadAllocations, k.NomadCardSeconds)
		if k.Unknown > 0 {
			against += fmt.Sprintf("; %d more are of attempts that nobody remembers, and are not compared", k.Unknown)
		}
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	s.pairs("Ledger", k.Path, "Schema", strconv.Itoa(k.Schema), "Booked up to", k.Booked.UTC().Format("2006-01-02 15:04Z"), "Attempts", n(k.Attempts), "Allocations", n(k.Allocations),
		"Card-seconds", n(k.CardSeconds), "Ends not told", n(k.Inexact), "Nomad has", against)
	if k.OK {
		s.line("Nothing is wrong")
		return
	}
	s.title("Wrong")
	for _, f := range k.Findings {
		s.line("%s", f)
	}
}
