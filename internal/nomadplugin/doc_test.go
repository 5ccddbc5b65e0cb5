package nomadplugin_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// Every test that the guide names exists in the package it names.
func TestGuideNamesTests(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/nomadplugin.md")
	must.NoError(t, err)
	named := 0
	pkg := ""
	for _, word := range regexp.MustCompile("`[a-z]+`|Test[A-Z][A-Za-z0-9]*").FindAllString(string(guide), -1) {
		if name, quoted := strings.CutPrefix(word, "`"); quoted {
			pkg = strings.TrimSuffix(name, "`")
			continue
		}
		named++
		files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
		must.NoError(t, err)
		found := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			must.NoError(t, err)
			found = found || strings.Contains(string(source), "func "+word+"(t *testing.T)")
		}
		must.True(t, found, must.Sprintf("no %s in package %s", word, pkg))
	}
	must.Greater(t, 30, named)
}
