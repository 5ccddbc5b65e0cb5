package contract

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestCardReportCheck(t *testing.T) {
	t.Parallel()
	good := CardReport{V: 1, Reporter: "r", Seq: 1, At: time.Unix(1, 0), Cards: []CardStatus{{ID: "a", State: CardHealthy}, {ID: "b", State: CardQuarantined}}}
	must.NoError(t, good.Check())
	data, err := json.Marshal(good)
	must.NoError(t, err)
	var again CardReport
	must.NoError(t, json.Unmarshal(data, &again))
	must.NoError(t, again.Check())
	bad := CardReport{V: 2, Cards: []CardStatus{{ID: "a", State: "fine"}, {ID: "a", State: ""}}}
	err = bad.Check()
	for _, want := range []string{"v = ", "reporter", "seq", "at:", "cards[0].state", "cards[1].id", "cards[1].state"} {
		must.ErrorContains(t, err, want)
	}
}

func TestCardOrderCheck(t *testing.T) {
	t.Parallel()
	must.NoError(t, CardOrder{ID: "1", Kind: OrderClear, Card: "a", Who: "ann"}.Check())
	must.NoError(t, CardOrder{ID: "1", Kind: OrderSuspect, Card: "a", State: CardSuspect}.Check())
	for _, bad := range []CardOrder{{}, {ID: "1", Kind: OrderClear, Card: "a"}, {ID: "1", Kind: OrderSuspect, Card: "a", State: "healthy"}, {ID: "1", Kind: "explode", Card: "a", Who: "ann"}} {
		must.Error(t, bad.Check())
	}
}
