// Command nomad-driver-torchrun is Muster's Nomad task driver. Nomad's agent
// starts it as a plugin. It starts itself again as the supervisor of each task
// (subcommand shim), as the wrapper of each rank under torchrun (rank), and in
// images as what starts processes there (inside).
package main

import (
	"fmt"
	"os"

	"github.com/nomad-muster/muster/driver"
	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	plugin "github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(shim.Main())
		case "rank":
			os.Exit(shim.Rank(os.Args[2:]))
		case "inside":
			os.Exit(shim.Inside(os.Args[2:]))
		case "readable":
			os.Exit(shim.Readable(os.Args[2:]))
		case "version", "-version", "--version":
			fmt.Println("nomad-driver-torchrun", buildinfo.String())
			return
		case "help", "-h", "-help", "--help":
			fmt.Println("nomad-driver-torchrun is a plugin: a Nomad agent that has it in its plugin_dir starts it.\nnomad-driver-torchrun version prints its version; docs/driver.md tells how it is set up.")
			return
		}
	}
	binary, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nomad-driver-torchrun: find this program:", err)
		os.Exit(1)
	}
	log := base.NewLogger("torchrun")
	plugin.Serve(driver.New(log, binary), log)
}
