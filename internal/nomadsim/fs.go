package nomadsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// frame is a piece of a streamed file.
type frame struct {
	Offset    int64  `json:",omitempty"`
	Data      []byte `json:",omitempty"`
	File      string `json:",omitempty"`
	FileEvent string `json:",omitempty"`
}

const (
	frameSize = 64 << 10
	followGap = 20 * time.Millisecond // how often a followed file is looked at
)

// clientFS serves the files of an allocation on a live node.
func (q *request) clientFS(rest string) (any, error) {
	what, id, _ := strings.Cut(rest, "/")
	if id == "" {
		return nil, fail(http.StatusBadRequest, "must provide a valid alloc id")
	}
	r, al, err := q.allocOnClient(id)
	if err != nil {
		return nil, err
	}
	if r.a.live == nil {
		return nil, fail(http.StatusNotFound, "allocation %s runs on a virtual node, which has no files", id)
	}
	d := r.a.live.dirs(al.ID, "")
	if what == "logs" {
		return q.fsLogs(r, d)
	}
	path, err := fsPath(d, al, q.q.Get("path"))
	if err != nil {
		return nil, err
	}
	switch what {
	case "ls":
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fsError(err)
		}
		list := []fileInfo{}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				list = append(list, infoOf(path, info))
			}
		}
		return list, nil
	case "stat":
		info, err := os.Stat(path)
		if err != nil {
			return nil, fsError(err)
		}
		return infoOf(filepath.Dir(path), info), nil
	case "cat", "readat":
		return q.fsRead(what, path)
	case "stream":
		f, err := os.Open(path)
		if err != nil {
			return nil, fsError(err)
		}
		defer f.Close()
		if _, err := f.Seek(int64(q.uintParam("offset")), originOf(q.q.Get("origin"))); err != nil {
			return nil, fsError(err)
		}
		out := q.frames(q.q.Get("plain") == "true")
		follow := q.q.Get("follow") != "false"
		for {
			if err := out.copy(f, q.q.Get("path")); err != nil {
				return nil, errHandled
			}
			if !follow || out.pause(q.r.Context(), q.c.ctx) != nil {
				return nil, errHandled
			}
		}
	}
	return nil, errUnmodelled
}

type fileInfo struct {
	Name        string
	IsDir       bool
	Size        int64
	FileMode    string
	ModTime     time.Time
	ContentType string `json:",omitempty"`
}

func infoOf(dir string, info fs.FileInfo) fileInfo {
	out := fileInfo{Name: info.Name(), IsDir: info.IsDir(), Size: info.Size(), FileMode: info.Mode().String(), ModTime: info.ModTime()}
	if info.Mode().IsRegular() {
		out.ContentType = mime.TypeByExtension(filepath.Ext(info.Name()))
		if f, err := os.Open(filepath.Join(dir, info.Name())); out.ContentType == "" && err == nil {
			b := make([]byte, 512)
			n, _ := io.ReadFull(f, b)
			f.Close()
			out.ContentType = http.DetectContentType(b[:n])
		}
	}
	return out
}

// fsPath finds a file of an allocation; secrets are not given out.
func fsPath(d taskDirs, al *wire.Allocation, path string) (string, error) {
	if rel := filepath.Clean(strings.TrimLeft(path, "/")); rel == ".." || strings.HasPrefix(rel, "../") {
		return "", errors.New("Path escapes the alloc directory")
	}
	full := filepath.Join(d.alloc, filepath.Join("/", path))
	resolved, err := filepath.EvalSymlinks(full)
	if err != nil {
		return "", fsError(err)
	}
	root, err := filepath.EvalSymlinks(d.alloc)
	if err != nil {
		return "", fsError(err)
	}
	if resolved != root && !strings.HasPrefix(resolved, root+string(filepath.Separator)) {
		return "", errors.New("Path escapes the alloc directory")
	}
	for _, t := range al.Group().Tasks {
		for _, hidden := range []string{"secrets", "private"} {
			if p := filepath.Join(root, t.Name, hidden); resolved == p || strings.HasPrefix(resolved, p+string(filepath.Separator)) {
				return "", fmt.Errorf("Reading %s file prohibited: %s", hidden, path)
			}
		}
	}
	return resolved, nil
}

func fsError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fail(http.StatusNotFound, "%v", err)
	}
	return err
}

func (q *request) fsRead(what, path string) (any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fsError(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fail(http.StatusBadRequest, "file %q is a directory", q.q.Get("path"))
	}
	var src io.Reader = f
	if what == "readat" {
		if _, err := f.Seek(int64(q.uintParam("offset")), io.SeekStart); err != nil {
			return nil, fsError(err)
		}
		if n := q.uintParam("limit"); n > 0 {
			src = io.LimitReader(f, int64(n))
		}
	}
	q.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.Copy(q.w, src)
	return nil, errHandled
}

// fsLogs sends a stream of a task's logs, through all of its files.
func (q *request) fsLogs(r *allocRun, d taskDirs) (any, error) {
	task, kind := q.q.Get("task"), q.q.Get("type")
	if task == "" {
		return nil, fail(http.StatusBadRequest, "must provide task name")
	}
	if kind != "stdout" && kind != "stderr" {
		return nil, fail(http.StatusBadRequest, "must provide log type (stdout/stderr)")
	}
	t := r.task(task)
	if t == nil {
		return nil, fail(http.StatusBadRequest, "unknown task name %q", task)
	}
	r.mu.Lock()
	started := t.start > 0
	r.mu.Unlock()
	if !started {
		return nil, fail(http.StatusNotFound, "task %q not started yet. No logs available", task)
	}
	name := task + "." + kind
	indexes := logIndexes(d.logs, name)
	if len(indexes) == 0 {
		return nil, fail(http.StatusNotFound, "log entry for task %q and log type %q not found", task, kind)
	}
	follow := q.q.Get("follow") == "true"
	at, offset := indexes[0], int64(q.uintParam("offset"))
	sizes := map[int]int64{}
	for _, i := range indexes {
		if info, err := os.Stat(filepath.Join(d.logs, fmt.Sprintf("%s.%d", name, i))); err == nil {
			sizes[i] = info.Size()
		}
	}
	if originOf(q.q.Get("origin")) == io.SeekEnd {
		k := len(indexes) - 1
		for k > 0 && offset > sizes[indexes[k]] {
			offset -= sizes[indexes[k]]
			k--
		}
		at = indexes[k]
		offset = max(sizes[at]-offset, 0)
	} else {
		for k := 0; k < len(indexes)-1 && offset > sizes[indexes[k]]; k++ {
			offset -= sizes[indexes[k]]
			at = indexes[k+1]
		}
	}
	out := q.frames(q.q.Get("plain") == "true")
	for {
		path := filepath.Join(d.logs, fmt.Sprintf("%s.%d", name, at))
		f, err := os.Open(path)
		if err != nil {
			return nil, errHandled
		}
		_, err = f.Seek(offset, io.SeekStart)
		for err == nil {
			if err = out.copy(f, filepath.Join("alloc", "logs", filepath.Base(path))); err != nil {
				break
			}
			if next := logIndexes(d.logs, name); len(next) > 0 && next[len(next)-1] > at {
				break // there is another file, so this one is whole
			}
			if !follow {
				err = io.EOF
				break
			}
			err = out.pause(q.r.Context(), q.c.ctx)
		}
		if err == nil {
			err = out.copy(f, filepath.Join("alloc", "logs", filepath.Base(path)))
		}
		f.Close()
		if err != nil {
			return nil, errHandled
		}
		at, offset = at+1, 0
	}
}

func originOf(s string) int {
	if s == "end" {
		return io.SeekEnd
	}
	return io.SeekStart
}

// frameWriter sends file contents as frames, or plainly.
type frameWriter struct {
	w     http.ResponseWriter
	plain bool
	last  time.Time
	buf   []byte
}

func (q *request) frames(plain bool) *frameWriter {
	q.w.Header().Set("Content-Type", "application/json")
	if plain {
		q.w.Header().Set("Content-Type", "text/plain")
	}
	q.w.WriteHeader(http.StatusOK)
	f := &frameWriter{w: q.w, plain: plain, last: time.Now(), buf: make([]byte, frameSize)}
	f.flush()
	return f
}

func (f *frameWriter) flush() {
	if fl, ok := f.w.(http.Flusher); ok {
		fl.Flush()
	}
}

// copy sends what is left of the file.
func (f *frameWriter) copy(file *os.File, name string) error {
	for {
		n, err := file.Read(f.buf)
		if n > 0 {
			at, _ := file.Seek(0, io.SeekCurrent)
			if werr := f.send(frame{Offset: at, Data: f.buf[:n], File: name}); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (f *frameWriter) send(fr frame) error {
	f.last = time.Now()
	var err error
	if f.plain {
		_, err = f.w.Write(fr.Data)
	} else {
		err = json.NewEncoder(f.w).Encode(fr)
	}
	f.flush()
	return err
}

// pause waits a little, with a sign of life every second.
func (f *frameWriter) pause(reader, cluster context.Context) error {
	if !f.plain && time.Since(f.last) > time.Second {
		if err := f.send(frame{}); err != nil {
			return err
		}
	}
	select {
	case <-reader.Done():
		return reader.Err()
	case <-cluster.Done():
		return cluster.Err()
	case <-time.After(followGap):
		return nil
	}
}
