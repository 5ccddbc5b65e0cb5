// Package xid knows NVIDIA's Xid codes and finds them in the kernel log.
//
// The catalogue (catalog.csv: code, mnemonic, NVIDIA's immediate and
// investigatory action) decides a code's Class, and the class decides what the
// health fold does with it. Actions that name a workflow instead of an act, and
// codes for which NVIDIA lists no action, are settled in the table overrides,
// each with its reason. A code that is in neither is Unknown, which condemns:
// what nobody has heard of is never taken for harmless.
//
// Parse reads one record. Assembler also joins the sentence "fallen off the
// bus" that some drivers cut into three records.
package xid

import (
	_ "embed"
	"encoding/csv"
	"strconv"
	"strings"
	"sync"
)

// Class is what must happen after a code.
type Class string

// The classes, mildest first.
const (
	Informational Class = "informational"   // nothing
	Application   Class = "application"     // the program is at fault or is to be started again; the card is not to blame
	Degraded      Class = "degraded"        // usable, but worth avoiding for a day
	Contained     Class = "contained"       // the program is lost to a memory error; over with its process
	Reset         Class = "reset"           // the card must be reset
	Machine       Class = "restart-machine" // the machine must be restarted
	Support       Class = "contact-support" // a person must look
	Unknown       Class = "unknown"         // not in the catalogue
)

// rank orders classes by severity.
var rank = map[Class]int{Informational: 0, Application: 1, Degraded: 2, Contained: 3, Reset: 4, Machine: 5, Support: 6, Unknown: 7}

// Known tells whether c is one of the classes.
func (c Class) Known() bool { _, ok := rank[c]; return ok }

// Worse tells whether c is more severe than other.
func (c Class) Worse(other Class) bool { return rank[c] > rank[other] }

// Hardware tells whether a code of this class counts against the card in the
// rate rules.
func (c Class) Hardware() bool { return rank[c] >= rank[Contained] }

// Entry is one code of the catalogue.
type Entry struct {
	Code        int
	Mnemonic    string
	Action      string // NVIDIA's immediate action; empty: none listed
	Investigate string // NVIDIA's investigatory action
	Class       Class
	Why         string // why the class is not the action's own; empty: it is
}

// OffTheBus is the code of a card that no longer answers on PCIe, also told
// without a code.
const OffTheBus = 79

// RecoveryAction is the code that carries an action in its text.
const RecoveryAction = 154

//go:embed catalog.csv
var catalogue string

// byAction gives the class of the actions that say what to do.
var byAction = map[string]Class{
	"IGNORE": Informational, "RESTART_APP": Application, "RESET_GPU": Reset, "RESTART_BM": Machine, "RESTART_VM": Machine,
	"CONTACT_SUPPORT": Support, "CHECK_MECHANICALS": Support, "UPDATE_SWFW": Application,
}

type override struct {
	class Class
	why   string
}

// overrides settle the codes whose action is a workflow, absent, or too coarse.
var overrides = map[int]override{
	45:  {Application, "cleanup of a channel after an earlier fault, which has its own code"},
	48:  {Reset, "the workflow ends in a reset once the row remap or page retirement is recorded"},
	63:  {Degraded, "a row is remapped at the next reset; until then the card runs on with it"},
	74:  {Reset, "the workflow's first step is a reset, the second a diagnosis of the link"},
	92:  {Degraded, "correctable errors come unusually fast"},
	94:  {Contained, "a memory error of the card: only the process is lost, but it counts against the card"},
	144: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	145: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	146: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	147: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	148: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	149: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	150: {Reset, "NVLink 5: fatal ones need a reset; the line says which are not fatal"},
	154: {Informational, "always beside the code of the fault; the line may name an action, which then decides"},
	157: {Support, "a resource could not be retired, so the fault stays"},
	159: {Reset, "no action without the driver's own diagnosis: the safe one"},
	162: {Informational, "power smoothing is back"},
	163: {Degraded, "power smoothing is off"},
	164: {Degraded, "power smoothing hardware nears its end of life"},
	165: {Support, "power smoothing hardware is worn out: a part to replace"},
	166: {Reset, "no action listed; traffic before encryption is set up needs the link brought up again"},
	167: {Machine, "no action listed; a fatal PCIe timeout leaves the card out of reach"},
	168: {Support, "no action listed; memory is lost for good"},
	169: {Reset, "no action listed; like the micro-controller halt 62"},
	170: {Degraded, "no action listed; an interrupt in confidential mode, seen beside other codes"},
	171: {Reset, "detail of 48"},
	172: {Reset, "detail of 48"},
}

var entries = sync.OnceValue(func() map[int]Entry {
	rows, err := csv.NewReader(strings.NewReader(catalogue)).ReadAll()
	if err != nil {
		panic("device/xid: embedded catalogue: " + err.Error())
	}
	table := make(map[int]Entry, len(rows))
	for _, row := range rows[1:] {
		code, err := strconv.Atoi(row[0])
		if err != nil {
			panic("device/xid: embedded catalogue: " + err.Error())
		}
		e := Entry{Code: code, Mnemonic: row[1], Action: row[2], Investigate: row[3], Class: Unknown}
		if class, ok := byAction[e.Action]; ok {
			e.Class = class
		}
		if o, ok := overrides[code]; ok {
			e.Class, e.Why = o.class, o.why
		}
		table[code] = e
	}
	return table
})

// Lookup finds a code in the catalogue.
func Lookup(code int) (Entry, bool) {
	e, ok := entries()[code]
	return e, ok
}

// Codes lists the catalogue's codes, ascending.
func Codes() []int {
	var codes []int
	for code := 1; len(codes) < len(entries()); code++ {
		if _, ok := entries()[code]; ok {
			codes = append(codes, code)
		}
	}
	return codes
}

// ClassOf is the class of a code without its line.
func ClassOf(code int) Class {
	if e, ok := entries()[code]; ok {
		return e.Class
	}
	return Unknown
}

// LineDecides tells that the class of a code may differ with its line: what
// NVML alone reports of it is not the whole story.
func LineDecides(code int) bool {
	return code == RecoveryAction || 144 <= code && code <= 150
}
