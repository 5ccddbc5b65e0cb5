package config

import (
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Fault is one thing that is wrong, with its place.
type Fault struct {
	File   string `json:"file"`
	Line   int    `json:"line"` // 0: the file as a whole
	Column int    `json:"column,omitempty"`
	Text   string `json:"text"`
}

func (f Fault) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text)
}

// Faults is an error that lists them all, ordered by file and line.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	if len(f) == 1 {
		return "configuration: " + lines[0]
	}
	return fmt.Sprintf("configuration: %d faults:\n  %s", len(f), strings.Join(lines, "\n  "))
}

// err is nil where there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	sort.SliceStable(f, func(i, j int) bool {
		a, b := f[i], f[j]
		if a.File != b.File {
			return a.File < b.File
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return f
}

// at makes a fault of a place.
func at(r hcl.Range, format string, args ...any) Fault {
	return Fault{File: r.Filename, Line: r.Start.Line, Column: r.Start.Column, Text: fmt.Sprintf(format, args...)}
}

// fromDiagnostics takes over what the HCL library found.
func fromDiagnostics(diags hcl.Diagnostics) Faults {
	var out Faults
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		text := d.Summary
		if d.Detail != "" {
			text += ": " + strings.Join(strings.Fields(d.Detail), " ")
		}
		fault := Fault{File: "configuration", Text: text}
		if d.Subject != nil {
			fault = at(*d.Subject, "%s", text)
		}
		out = append(out, fault)
	}
	return out
}

// places remembers where a setting stands, for findings that come after the
// reading: keys such as "queue research guaranteed H100".
type places map[string]hcl.Range

func (p places) set(r hcl.Range, key ...string) { p[strings.Join(key, " ")] = r }

// of is the place of a key, or of the nearest thing around it that has one.
func (p places) of(key ...string) hcl.Range {
	for n := len(key); n > 0; n-- {
		if r, ok := p[strings.Join(key[:n], " ")]; ok {
			return r
		}
	}
	return hcl.Range{Filename: "configuration"}
}
