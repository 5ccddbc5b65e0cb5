// Nomad-device-gpu is Muster's Nomad device plugin. A Nomad agent starts it
// without arguments; people use its commands for trials.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/amd"
	"github.com/nomad-muster/muster/device/ascend"
	"github.com/nomad-muster/muster/device/exposition"
	"github.com/nomad-muster/muster/device/intel"
	"github.com/nomad-muster/muster/device/kernlog"
	"github.com/nomad-muster/muster/device/nvml"
	"github.com/nomad-muster/muster/device/rdma"
	"github.com/nomad-muster/muster/device/report"
	"github.com/nomad-muster/muster/device/selftest"
	"github.com/nomad-muster/muster/device/simulated"
	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

const usage = `usage: nomad-device-gpu              (started by a Nomad agent: serves the plugin)
       nomad-device-gpu card [-state-dir DIR] list
       nomad-device-gpu card [-state-dir DIR] status CARD
       nomad-device-gpu card [-state-dir DIR] [-who NAME] confirm|note CARD TEXT
       nomad-device-gpu card [-state-dir DIR] [-who NAME] [-force] clear CARD [TEXT]
       nomad-device-gpu inject -file FILE -node NODE [-card N | -nic NAME] FAULT
       nomad-device-gpu check FILE   (a description of simulated cards)
       nomad-device-gpu version

Faults that can be injected into simulated cards:
`

func main() {
	if len(os.Args) < 2 {
		serve()
		return
	}
	var err error
	switch command := os.Args[1]; command {
	case "card":
		err = card(os.Args[2:], os.Stdout)
	case "inject":
		err = inject(os.Args[2:])
	case "check":
		err = check(os.Args[2:])
	case "version", "-version":
		fmt.Println(buildinfo.String())
	case "help", "-h", "-help":
		fmt.Print(usage + simulated.Usage())
	default:
		err = fmt.Errorf("unknown command %q\n\n%s%s", command, usage, simulated.Usage())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nomad-device-gpu:", err)
		os.Exit(1)
	}
}

// serve speaks Nomad's plugin protocol until the agent ends.
func serve() {
	// A plugin lives beside the work: rather a little time than memory. What
	// the start needed is given back once it is over.
	debug.SetGCPercent(30)
	time.AfterFunc(15*time.Second, settle)
	log := base.NewLogger("nomad-device-gpu")
	p := device.New(build, log)
	defer p.Close()
	nomad.Serve(p, log)
}

// build makes the parts that a configuration asks for.
func build(ctx context.Context, c device.Config, m *device.Monitor, log hclog.Logger) device.Parts {
	var parts device.Parts
	boot, err := kernlog.BootID()
	if err != nil {
		log.Error("a reboot cannot be told from a restart", "error", err)
	}
	parts.Boot, parts.Owners = boot, device.Proc{}
	real := slices.ContainsFunc(c.Sources, func(s string) bool { return s != "simulated" })
	if real || c.TrustUserspace {
		parts.Logs = append(parts.Logs, kernlog.NewKmsg(kernlog.DevKmsg, boot))
	}
	for _, name := range c.Sources {
		switch name {
		case "nvml":
			parts.Sources = append(parts.Sources, nvml.New(nvml.Options{LinesElsewhere: kernlog.Readable(kernlog.DevKmsg)}))
		case "rdma":
			parts.Sources = append(parts.Sources, rdma.New(""))
			parts.Parsers = append(parts.Parsers, rdma.ParseLine)
		case "amd":
			parts.Sources = append(parts.Sources, amd.New(""))
			parts.Parsers = append(parts.Parsers, amd.ParseLine)
		case "ascend":
			parts.Sources = append(parts.Sources, ascend.New(ascend.Tool, ""))
		case "intel":
			parts.Sources = append(parts.Sources, intel.New(""))
		case "simulated":
			s := simulated.New(c.Simulated.File, c.Simulated.Node)
			parts.Sources = append(parts.Sources, s)
			parts.Logs = append(parts.Logs, s)
		}
	}
	parts.Tester = selftest.New(c.SelfTest)
	name := c.Simulated.Node
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			name = "unnamed"
		}
	}
	var holders exposition.Holders
	if c.Report.Address != "" {
		client, err := report.New(report.Options{Config: c.Report, Node: name, Boot: boot, Cards: m, Log: log.Named("report")})
		if err != nil {
			log.Error("the planner is not told of cards directly, only through Nomad", "error", err)
		} else {
			parts.Reporter, holders = client, client.Holders
			go client.Run(ctx)
		}
	}
	if c.Prometheus != "" {
		go exposition.Serve(ctx, c.Prometheus, exposition.New(m, holders, name), log.Named("metrics"))
	}
	return parts
}

// inject appends one injection to the journal of a description.
func inject(args []string) error {
	i := simulated.Injection{Card: -1}
	file := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, joined := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		args = args[1:]
		if !joined {
			if len(args) == 0 {
				return fmt.Errorf("inject: -%s needs a value", name)
			}
			value, args = args[0], args[1:]
		}
		switch name {
		case "file":
			file = value
		case "node":
			i.Node = value
		case "nic":
			i.NIC = value
		case "card":
			if _, err := fmt.Sscan(value, &i.Card); err != nil || i.Card < 0 {
				return fmt.Errorf("inject: -card %s: the index of a card", value)
			}
		default:
			return fmt.Errorf("inject: unknown option -%s\n\n%s%s", name, usage, simulated.Usage())
		}
	}
	if file == "" {
		return fmt.Errorf("inject: -file is missing\n\n%s%s", usage, simulated.Usage())
	}
	i, err := simulated.ParseInjection(i, args)
	if err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	return simulated.Inject(file, i)
}

// check reads a description and says what it holds.
func check(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("check: one file\n\n%s", usage)
	}
	text, err := simulated.Describe(args[0])
	if err != nil {
		return err
	}
	fmt.Print(text)
	return nil
}
