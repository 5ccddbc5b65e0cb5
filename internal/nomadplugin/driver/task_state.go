package driver

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// validateFor lists why Nomad could not keep or use a handle for the task that
// cfg started.
func (h *TaskHandle) validateFor(cfg *TaskConfig) error {
	if h == nil {
		return errors.New("no task handle")
	}
	var f wire.Faults
	switch {
	case h.Config == nil:
		f.Add("task handle without the task's configuration")
	case h.Config.ID != cfg.ID:
		f.Add("task handle of task %q", h.Config.ID)
	}
	if h.Version == 0 {
		f.Add("task handle of version 0, which is nomad's own")
	}
	if _, ok := driverpb.TaskState_name[int32(h.State)]; !ok {
		f.Add("task handle with unknown state %d", h.State)
	}
	return f.Err()
}

func handleToProto(h *TaskHandle) *driverpb.TaskHandle {
	if h == nil {
		return nil
	}
	return &driverpb.TaskHandle{
		Version: h.Version, Config: taskConfigToProto(h.Config), State: driverpb.TaskState(h.State), DriverState: h.Driver,
	}
}

func handleFromProto(p *driverpb.TaskHandle) *TaskHandle {
	if p == nil {
		return nil
	}
	return &TaskHandle{
		Version: p.GetVersion(), Config: taskConfigFromProto(p.GetConfig()), State: stateFromProto(p.GetState()), Driver: p.GetDriverState(),
	}
}

func stateFromProto(s driverpb.TaskState) TaskState {
	if _, ok := driverpb.TaskState_name[int32(s)]; !ok {
		return TaskStateUnknown
	}
	return TaskState(s)
}

// exitToProto refuses numbers that would become others on the wire: 1<<32
// would arrive as exit code 0.
func exitToProto(r *ExitResult) (*driverpb.ExitResult, error) {
	if r == nil {
		return nil, errors.New("no exit result")
	}
	var f wire.Faults
	for what, n := range map[string]int{"exit code": r.ExitCode, "signal": r.Signal} {
		if n < math.MinInt32 || n > math.MaxInt32 {
			f.Add("%s %d does not fit 32 bits", what, n)
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return &driverpb.ExitResult{ExitCode: int32(r.ExitCode), Signal: int32(r.Signal), OomKilled: r.OOMKilled}, nil
}

func exitFromProto(p *driverpb.ExitResult) *ExitResult {
	if p == nil {
		return nil
	}
	return &ExitResult{ExitCode: int(p.GetExitCode()), Signal: int(p.GetSignal()), OOMKilled: p.GetOomKilled()}
}

// timeToProto is never nil, as Nomad needs it; the zero time is the wire's
// zero (1970), which timeFromProto turns back.
func timeToProto(t time.Time) (*timestamppb.Timestamp, error) {
	if t.IsZero() {
		return &timestamppb.Timestamp{}, nil
	}
	p := timestamppb.New(t)
	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("time %v is out of range", t)
	}
	return p, nil
}

func timeFromProto(p *timestamppb.Timestamp) time.Time {
	if !p.IsValid() || (p.GetSeconds() == 0 && p.GetNanos() == 0) {
		return time.Time{}
	}
	return p.AsTime()
}

// statusToProto always sets both times and the result: Nomad's agent would
// panic without.
func statusToProto(s *TaskStatus) (*driverpb.InspectTaskResponse, error) {
	if s == nil {
		return nil, errors.New("no task status")
	}
	var f wire.Faults
	started, err := timeToProto(s.Started)
	f.Check("start", err)
	ended, err := timeToProto(s.Ended)
	f.Check("end", err)
	exit := &driverpb.ExitResult{}
	if s.Exit != nil {
		exit, err = exitToProto(s.Exit)
		f.Check("exit", err)
	}
	if _, ok := driverpb.TaskState_name[int32(s.State)]; !ok {
		f.Add("unknown state %d", s.State)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return &driverpb.InspectTaskResponse{
		Task: &driverpb.TaskStatus{
			Id: wire.Text(s.ID), Name: wire.Text(s.Name), State: driverpb.TaskState(s.State),
			StartedAt: started, CompletedAt: ended, Result: exit,
		},
		Driver: &driverpb.TaskDriverStatus{Attributes: wire.TextMap(s.DriverAttributes)},
	}, nil
}

// statusFromProto gives an exit only for a task that is over.
func statusFromProto(p *driverpb.InspectTaskResponse) *TaskStatus {
	t := p.GetTask()
	s := &TaskStatus{
		ID: t.GetId(), Name: t.GetName(), State: stateFromProto(t.GetState()),
		Started: timeFromProto(t.GetStartedAt()), Ended: timeFromProto(t.GetCompletedAt()),
		DriverAttributes: p.GetDriver().GetAttributes(),
	}
	if s.State == TaskStateExited {
		s.Exit = exitFromProto(t.GetResult())
	}
	return s
}

func eventToProto(e *TaskEvent, now time.Time) (*driverpb.DriverTaskEvent, error) {
	if e == nil {
		return nil, errors.New("no task event")
	}
	var f wire.Faults
	f.Check("allocation id", wire.CheckName(e.AllocID)) // without both, Nomad drops the event
	f.Check("task name", wire.CheckName(e.TaskName))
	at := e.At
	if at.IsZero() {
		at = now
	}
	pat, err := timeToProto(at)
	f.Check("event", err)
	if err := f.Err(); err != nil {
		return nil, err
	}
	message := e.Message
	if e.Err != nil {
		if message != "" {
			message += ": "
		}
		message += e.Err.Error()
	}
	return &driverpb.DriverTaskEvent{
		TaskId: wire.Text(e.TaskID), AllocId: e.AllocID, TaskName: e.TaskName, Timestamp: pat,
		Message: wire.Text(message), Annotations: wire.TextMap(e.Annotations),
	}, nil
}

func eventFromProto(p *driverpb.DriverTaskEvent) *TaskEvent {
	return &TaskEvent{
		TaskID: p.GetTaskId(), AllocID: p.GetAllocId(), TaskName: p.GetTaskName(), At: timeFromProto(p.GetTimestamp()),
		Message: p.GetMessage(), Annotations: p.GetAnnotations(),
	}
}
