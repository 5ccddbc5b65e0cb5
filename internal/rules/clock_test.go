package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// clock is what package time has beside its types: reading the clock, and
// timers.
var clock = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep", "Local", "LoadLocation"}

// TestCoreReadsNoClock reads the decision core's own source: the snapshot says
// what time it is.
func TestCoreReadsNoClock(t *testing.T) {
	err := filepath.WalkDir("../../planner/core", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && x.Obj == nil && slices.Contains(clock, sel.Sel.Name) {
				t.Errorf("%s: time.%s: the decision core never reads a clock", files.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
		return nil
	})
	must.NoError(t, err)
}
