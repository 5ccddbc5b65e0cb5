package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/httpapi/client"
)

var errHelp = errors.New("help")

// Flags declares a command's flags.
type Flags struct {
	*flag.FlagSet
	groups []flagGroup
}

type flagGroup struct {
	title string
	names []string
}

// group gives the flags declared since the last group a title in the help.
func (f *Flags) group(title string) {
	known := map[string]bool{}
	for _, g := range f.groups {
		for _, n := range g.names {
			known[n] = true
		}
	}
	var names []string
	f.VisitAll(func(fl *flag.Flag) { // in alphabetical order
		if !known[fl.Name] {
			names = append(names, fl.Name)
		}
	})
	if len(names) > 0 {
		f.groups = append(f.groups, flagGroup{title, names})
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ", ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// Call is one run of a command.
type Call struct {
	*Env
	command Command

	// Flags of all commands that ask a planner, and of those that print data.
	address, token, namespace     string
	caCert, clientCert, clientKey string
	skipVerify, asJSON, noColor   bool
	template                      string
	printedJSON                   bool
}

func (c *Call) flags() *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet("", flag.ContinueOnError)}
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	if c.command.Flags != nil {
		c.command.Flags(f)
		f.group("Options")
	}
	if c.command.Data {
		f.BoolVar(&c.asJSON, "json", false, "Print one JSON document.")
		f.StringVar(&c.template, "t", "", "Print through a Go `template` over what -json prints, by the names of planner/view.")
		f.BoolVar(&c.noColor, "no-color", false, "No colours; NO_COLOR does the same.")
		f.group("Output")
	}
	if c.command.API {
		f.StringVar(&c.address, "address", "", "The planner's `URL`; default MUSTER_ADDR, else "+client.DefaultAddress+".")
		f.StringVar(&c.token, "token", "", "Token for the planner; default MUSTER_TOKEN, or the content of MUSTER_TOKEN_FILE.")
		f.StringVar(&c.namespace, "namespace", "", "Nomad `namespace`; default NOMAD_NAMESPACE, else \"default\". * is all of them.")
		f.StringVar(&c.caCert, "ca-cert", "", "`File` with the CA certificate of the planner; default MUSTER_CACERT.")
		f.StringVar(&c.clientCert, "client-cert", "", "`File` with a certificate to show; default MUSTER_CLIENT_CERT.")
		f.StringVar(&c.clientKey, "client-key", "", "`File` with its key; default MUSTER_CLIENT_KEY.")
		f.BoolVar(&c.skipVerify, "tls-skip-verify", false, "Do not check the planner's certificate; default MUSTER_SKIP_VERIFY.")
		f.group("Planner")
	}
	return f
}

// parse reads flags wherever they stand among the arguments; what follows --
// is arguments alone.
func (c *Call) parse(args []string) (rest []string, err error) {
	f := c.flags()
	for {
		before := args
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, errHelp
			}
			return nil, plainer(f, err)
		}
		left := f.Args()
		if used := len(before) - len(left); used > 0 && before[used-1] == "--" {
			rest = append(rest, left...)
			break
		}
		if len(left) == 0 {
			break
		}
		rest, args = append(rest, left[0]), left[1:]
	}
	switch n := len(rest); {
	case n < c.command.Least && c.command.Least == 1:
		return nil, errors.New("an argument is missing")
	case n < c.command.Least:
		return nil, fmt.Errorf("%d arguments are needed, %d given", c.command.Least, n)
	case c.command.Most == 0 && n > 0:
		return nil, fmt.Errorf("takes no arguments, %q given", strings.Join(rest, " "))
	case c.command.Most > 0 && n > c.command.Most:
		return nil, fmt.Errorf("takes at most %d arguments, %d given", c.command.Most, n)
	case c.asJSON && c.template != "":
		return nil, errors.New("-json and -t exclude each other")
	}
	return rest, nil
}

// plainer says what a value should have been, where package flag does not.
func plainer(f *Flags, err error) error {
	text, unparsed := strings.CutSuffix(err.Error(), ": parse error")
	if !unparsed {
		return err
	}
	want := "a whole number"
	f.VisitAll(func(fl *flag.Flag) {
		if g, ok := fl.Value.(flag.Getter); ok && strings.HasSuffix(text, " for flag -"+fl.Name) {
			if _, is := g.Get().(time.Duration); is {
				want = "a length of time such as 90s, 30m or 2h"
			}
		}
	})
	return errors.New(text + ": it is " + want)
}

// Help is a command's help, made of its declaration.
func (r *runner) Help() string {
	call := &Call{Env: r.env, command: r.command}
	f := call.flags()
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: muster %s\n\n%s\n", r.command.Usage, indent(wrap(r.command.About, 76), "  "))
	for _, g := range f.groups {
		fmt.Fprintf(&b, "\n%s:\n", g.title)
		for _, name := range g.names {
			fl := f.Lookup(name)
			value, text := flag.UnquoteUsage(fl)
			if g, ok := fl.Value.(flag.Getter); ok {
				if _, is := g.Get().(time.Duration); is {
					value = "duration"
				}
			}
			line := "-" + name
			if value != "" {
				line += "=<" + strings.ToLower(value) + ">"
			}
			fmt.Fprintf(&b, "\n  %s\n%s\n", line, indent(wrap(text, 72), "    "))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// client for the planner that the flags and the environment name.
func (c *Call) client() (*client.Client, error) {
	o, err := client.FromEnv(c.Getenv)
	if err != nil {
		return nil, err
	}
	if c.address != "" {
		o.Address, o.From = c.address, "-address"
	}
	if c.token != "" {
		o.Token = c.token
	}
	for _, set := range []struct{ flag, into *string }{{&c.caCert, &o.CACert}, {&c.clientCert, &o.ClientCert}, {&c.clientKey, &o.ClientKey}} {
		if *set.flag != "" {
			*set.into = *set.flag
		}
	}
	o.SkipVerify = o.SkipVerify || c.skipVerify
	return client.New(o)
}

// inNamespace is the namespace that a command works in, and whether its user
// said so.
func (c *Call) inNamespace() (namespace string, stated bool) {
	if c.namespace != "" {
		return c.namespace, true
	}
	if ns := c.Getenv("NOMAD_NAMESPACE"); ns != "" {
		return ns, true
	}
	return "default", false
}

// wrap breaks prose at a width. Lines that start with a space stay as they
// are.
func wrap(text string, width int) string {
	var out []string
	for _, para := range strings.Split(text, "\n") {
		if strings.HasPrefix(para, " ") || para == "" {
			out = append(out, para)
			continue
		}
		line := ""
		for _, word := range strings.Fields(para) {
			switch {
			case line == "":
				line = word
			case len(line)+1+len(word) > width:
				out = append(out, line)
				line = word
			default:
				line += " " + word
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func indent(text, by string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		if lines[i] != "" {
			lines[i] = by + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}
