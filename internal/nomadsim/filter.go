package nomadsim

import (
	"net/http"

	"github.com/hashicorp/go-bexpr"
)

// filter reads the filter expression of a list, in the language of Nomad's API over the fields of its objects.
func (q *request) filter() (func(v any) (bool, error), error) {
	expr := q.q.Get("filter")
	if expr == "" {
		return func(any) (bool, error) { return true, nil }, nil
	}
	eval, err := bexpr.CreateEvaluator(expr)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "failed to create result paginator: failed to read filter expression: %v", err)
	}
	return func(v any) (bool, error) {
		ok, err := eval.Evaluate(v)
		if err != nil {
			return false, fail(http.StatusBadRequest, "failed to create result paginator: failed to read filter expression: %v", err)
		}
		return ok, nil
	}, nil
}
