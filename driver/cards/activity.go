package cards

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// told are the files in which AMD's driver tells what a card does, below its
// device's folder.
var told = []struct{ file, text string }{
	{"gpu_busy_percent", "computing %s %% of the time"},
	{"mem_busy_percent", "memory busy %s %%"},
	{"mem_info_vram_used", "%s bytes of memory used"},
	{"power_state", "power state %s"},
}

// Activity is what the kernel tells of the card behind a device node, as a
// sentence; empty where it tells nothing. sys is where sysfs is mounted.
func Activity(sys, node string) string {
	n, err := number(node)
	if err != nil {
		return ""
	}
	var out []string
	for _, t := range told {
		text, err := os.ReadFile(filepath.Join(sys, fmt.Sprintf("dev/char/%d:%d/device", unix.Major(n), unix.Minor(n)), t.file))
		if err == nil {
			out = append(out, fmt.Sprintf(t.text, strings.TrimSpace(string(text))))
		}
	}
	return strings.Join(out, ", ")
}
