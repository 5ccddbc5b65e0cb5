//go:build linux

package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// client has no keep-alive: pieces of the cluster are killed and come back at
// the same address.
var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// call makes one HTTP request; an answer other than 2xx is an error with its
// text. The answer's JSON goes into out unless that is nil.
func call(ctx context.Context, method, url string, body io.Reader, out any) error {
	text, err := request(ctx, method, url, body)
	if err == nil && out != nil {
		if err = json.Unmarshal(text, out); err != nil {
			err = fmt.Errorf("%s %s: read the answer: %w", method, url, err)
		}
	}
	return err
}

func request(ctx context.Context, method, url string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", method, url, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, strings.TrimSpace(string(text[:min(len(text), 4<<10)])))
	}
	return text, nil
}
