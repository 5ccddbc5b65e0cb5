package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/view"
)

func agent(run func(context.Context, Agent) error) Command {
	var paths list
	var logLevel, pidFile string
	return Command{
		Synopsis: "Run the planner",
		Usage:    "agent [options]",
		About: "Runs the planner in the foreground until SIGINT or SIGTERM. It needs Nomad's address and token (nomad block, or NOMAD_ADDR and NOMAD_TOKEN) and Consul's (consul block, or CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN). " +
			"SIGHUP reads the configuration again; one with faults leaves the old one in force, and what takes effect at the next start only is told.\n\n" +
			"Without -config there is one queue, \"default\", for Nomad's namespace \"default\", and nobody may use the API: a configuration says who may.",
		Flags: func(f *Flags) {
			f.Var(&paths, "config", "`File` of the configuration, or folder with *.hcl and *.json files; may be given several times.")
			f.StringVar(&logLevel, "log-level", "", "`Level` of the log instead of the configuration's: debug, info, warn, error.")
			f.StringVar(&pidFile, "pid-file", "", "`File` to write the process id to; it is removed at the end.")
		},
		Run: func(c *Call, _ []string) error {
			live, err := config.Open(paths...)
			if err != nil {
				return err
			}
			level := logLevels{stated: logLevel}
			if err := level.set(live.Current()); err != nil {
				return err
			}
			log := logger(c.Stderr, live.Current(), &level)
			if pidFile != "" {
				if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
					return fmt.Errorf("write pid file: %w", err)
				}
				defer os.Remove(pidFile)
			}
			log.Info("Muster planner", "version", buildinfo.String(), "config", strings.Join(live.Current().Files, ", "))
			if cfg := live.Current(); len(cfg.Tokens) == 0 && cfg.API.Anonymous == view.RoleNone {
				log.Warn("nobody can use the API: the configuration has no token block, and its api block lets nobody in without one")
			}
			ctx, cancel := context.WithCancel(c.Context)
			defer cancel()
			reloaded := make(chan struct{}, 1)
			go reload(ctx, c.Hangup, live, log, &level, reloaded)
			err = run(ctx, Agent{Config: live, Log: log, Reloaded: reloaded})
			if cause := context.Cause(c.Context); cause != nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, cause)) {
				log.Info("ended", "by", cause)
				return nil // to be ended is what an agent is for
			}
			if err != nil {
				return fmt.Errorf("run the planner: %w", err)
			}
			return nil
		},
	}
}

// logLevels is the level of the log: the flag's, or else the configuration's.
type logLevels struct {
	slog.LevelVar
	stated string
}

func (l *logLevels) set(cfg *config.Config) error {
	text := l.stated
	if text == "" {
		text = cfg.LogLevel // one of slog's own names
	}
	if err := l.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("-log-level=%s is none of debug, info, warn, error", text)
	}
	return nil
}

// logger writes the agent's log as its configuration says.
func logger(w io.Writer, cfg *config.Config, level *logLevels) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if cfg.LogJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// reload reads the configuration again at each hangup.
func reload(ctx context.Context, hangup <-chan struct{}, live *config.Live, log *slog.Logger, level *logLevels, reloaded chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		restart, err := live.Reload()
		if err != nil {
			log.Error("the configuration was not reloaded and the old one stays in force", "error", err)
			continue
		}
		_ = level.set(live.Current()) // it was right at the start, and files are checked
		log.Info("configuration reloaded")
		if len(restart) > 0 {
			log.Warn("some changes take effect at the next start only", "settings", strings.Join(restart, ", "))
		}
		select {
		case reloaded <- struct{}{}:
		default: // one is waiting already
		}
	}
}

func dev(run func(context.Context, Dev) error) Command {
	var d Dev
	return Command{
		Synopsis: "Run a trial cluster with a gang on it",
		Usage:    "dev [options]",
		About: "Brings up a trial cluster on this machine: a Nomad (simulated, with live nodes that run the real plugins; or a real one), Consul, simulated cards and the planner. Submits a gang and follows it through its stages. " +
			"Stays up until Ctrl-C and takes everything away then.",
		Flags: func(f *Flags) {
			f.StringVar(&d.Kind, "nomad", "", "Which Nomad: `auto|sim|real`; auto takes a real one where NOMAD_BIN or PATH has it. Default MUSTER_DEV, else auto.")
			f.BoolVar(&d.Once, "once", false, "End with the gang's result.")
			f.IntVar(&d.Nodes, "nodes", 0, "`Number` of nodes; default 4.")
			f.IntVar(&d.Cards, "cards", 0, "`Number` of simulated cards of each node; default 4.")
			f.StringVar(&d.Job, "job", "", "`File` of the job to submit; default: an example.")
			f.StringVar(&d.Dir, "dir", "", "`Folder` for logs and state; default: a temporary one that is removed at the end.")
		},
		Run: func(c *Call, _ []string) error {
			if d.Kind == "" {
				d.Kind = c.Getenv("MUSTER_DEV")
			}
			if d.Kind == "" {
				d.Kind = "auto"
			}
			if d.Kind != "auto" && d.Kind != "sim" && d.Kind != "real" {
				return fmt.Errorf("-nomad=%s (or MUSTER_DEV) is none of auto, sim, real", d.Kind)
			}
			if d.Nodes < 0 || d.Cards < 0 {
				return errors.New("-nodes and -cards are numbers from 1 on")
			}
			if d.Job != "" {
				if _, err := os.Stat(d.Job); err != nil {
					return fmt.Errorf("read job file: %w", err)
				}
			}
			d.Once = d.Once || c.Getenv("ONCE") == "1"
			d.Stdout, d.Stderr = c.Stdout, c.Stderr
			err := run(c.Context, d)
			if context.Cause(c.Context) != nil && (err == nil || errors.Is(err, context.Canceled)) && !d.Once {
				return nil
			}
			return err
		},
	}
}

func version() Command {
	return Command{
		Synopsis: "Print the version",
		Usage:    "version [options]",
		About:    "Prints the version of this program.",
		Data:     true,
		Run: func(c *Call, _ []string) error {
			v := struct {
				Version string `json:"version"`
			}{buildinfo.String()}
			return c.print(v, func(w *screen) { w.line("Muster v%s", v.Version) })
		},
	}
}
