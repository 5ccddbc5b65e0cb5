package command

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// misuse is a command line that calls no command: an unknown word, or flags
// before the command. nil: it calls one, or asks for help.
func misuse(commands map[string]Command, args []string) error {
	if len(args) == 0 {
		return nil // the list of commands is what there is to say
	}
	first := args[0]
	if strings.HasPrefix(first, "-") {
		switch strings.TrimLeft(first, "-") {
		case "h", "help", "v", "version":
			return nil
		}
		if i := slices.IndexFunc(args, func(a string) bool { return known(commands, a) }); i > 0 {
			words := args[i : i+1]
			if i+1 < len(args) {
				if _, ok := commands[args[i]+" "+args[i+1]]; ok {
					words = args[i : i+2]
				}
			}
			call := strings.Join(words, " ")
			return fmt.Errorf("flags stand behind the command: muster %s %s; muster %s -h lists its flags", call, strings.Join(args[:i], " "), call)
		}
		return fmt.Errorf("flag %s, and no command; muster -h lists the commands, muster <command> -h the flags of one", first)
	}
	if !known(commands, first) {
		return fmt.Errorf("there is no command %q%s; muster -h lists them", first, similar(slices.Collect(maps.Keys(commands)), strings.Join(args, " ")))
	}
	if _, is := commands[first]; is || len(args) == 1 || strings.HasPrefix(args[1], "-") {
		return nil
	}
	if _, is := commands[first+" "+args[1]]; is {
		return nil
	}
	var below []string
	for name := range commands {
		if rest, ok := strings.CutPrefix(name, first+" "); ok {
			below = append(below, rest)
		}
	}
	slices.Sort(below)
	return fmt.Errorf("muster %s has no command %q%s; there is %s", first, args[1], similar(below, args[1]), strings.Join(below, ", "))
}

// known tells whether a word is a command, or begins one.
func known(commands map[string]Command, word string) bool {
	if _, ok := commands[word]; ok {
		return true
	}
	_, ok := parents[word]
	return ok
}

// similar suggests the name that was meant, where one is near; else "".
func similar(names []string, typed string) string {
	best, distance := "", 3
	for _, name := range slices.Sorted(slices.Values(names)) {
		// The longest thing typed that a name of so many words can be.
		words := strings.Fields(typed)
		words = words[:min(len(words), len(strings.Fields(name)))]
		if d := edits(name, strings.Join(words, " ")); d < distance && d < len(name)/2+1 {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// edits is how many letters have to be put in, taken out or changed to make
// one text of the other.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// misused tells of a misuse, as JSON too where that is asked for.
func misused(env *Env, err error, args []string) int {
	call := &Call{Env: env, asJSON: slices.Contains(args, "-json") || slices.Contains(args, "--json")}
	return call.finish(err)
}
