// Handles Azure Scheduled Events, on Azure and with Forewarn. Go 1.18 or newer, standard library only.
//
// The program polls. For each event that names this VM, it prepares, approves, and reports the start and the end.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	azure        = "http://169.254.169.254"
	eventsPath   = "/metadata/scheduledevents?api-version=2020-07-01"
	namePath     = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
	firstTimeout = 130 // seconds; on Azure, the response to the first GET can take two minutes
	olderSeconds = 10  // a lower incarnation that stays this long is a new count; before, it may be an old document
)

var (
	knownTypes = map[string]bool{"Freeze": true, "Reboot": true, "Redeploy": true, "Preempt": true, "Terminate": true}
	endpoint   = flag.String("endpoint", "", "`URL` (default: FOREWARN_ENDPOINT, or Azure's address)")
	name       = flag.String("name", "", "`name` of this VM in events (default: ask the endpoint)")
	run        = flag.String("run", "", "`command` that prepares this VM")
	interval   = flag.Float64("interval", 1, "`seconds` between polls")
	timeout    = flag.Float64("timeout", 10, "`seconds` for a response")
	repeat     = flag.Float64("repeat", 60, "`seconds` until the same approval again")

	// Unlike the default one, this transport has no proxy.
	client      = http.Client{Transport: &http.Transport{}, CheckRedirect: noRedirect}
	tracked     = map[string]*event{} // events of this VM by EventId
	incarnation = int64(-1)           // of the last document; -1: none yet
	olderSince  time.Time
	problem     string // the last one, so that it is reported once
)

type event struct {
	EventId, EventType, EventStatus, NotBefore string
	Resources                                  []string
	ready                                      bool      // prepared, and to be approved
	sent                                       time.Time // the last approval
}

type document struct {
	DocumentIncarnation int64
	Events              []*event
}

func main() {
	flag.Parse()
	for _, choice := range []string{os.Getenv("FOREWARN_ENDPOINT"), azure} {
		if *endpoint == "" {
			*endpoint = choice
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	for ctx.Err() == nil && *name == "" {
		text, _ := request(ctx, http.MethodGet, namePath, nil)
		if *name = strings.TrimSpace(text); *name == "" {
			pause(ctx)
		}
	}
	if ctx.Err() == nil {
		fmt.Printf("polling %s as %s\n", *endpoint, *name)
	}
	for ; ctx.Err() == nil; pause(ctx) {
		if found := poll(ctx); found != nil {
			if isNew(found.DocumentIncarnation) {
				handle(ctx, found.Events)
			}
			approve(ctx)
		}
	}
}

func pause(ctx context.Context) {
	select {
	case <-time.After(time.Duration(*interval * float64(time.Second))):
	case <-ctx.Done():
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// request returns the text of a response with status 200. After any failure the next poll retries.
func request(ctx context.Context, method, path string, body io.Reader) (string, bool) {
	limit := *timeout
	if incarnation < 0 && limit < firstTimeout {
		limit = firstTimeout
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(limit*float64(time.Second)))
	defer cancel()
	text, err := send(limited, method, path, body)
	if err != nil {
		if ctx.Err() == nil { // otherwise the program ends
			report(method, err.Error())
		}
		return "", false
	}
	report(method, "")
	return text, true
}

func send(ctx context.Context, method, path string, body io.Reader) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(*endpoint, "/")+path, body)
	if err != nil {
		return "", err
	}
	request.Header.Set("Metadata", "true")
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", response.StatusCode)
	}
	return string(text), err
}

// report prints a problem when it begins, not at each poll. An empty one means success.
func report(method, found string) {
	line := fmt.Sprintf("retrying %s: %s", method, found)
	if found != "" && line != problem {
		fmt.Fprintln(os.Stderr, line)
		problem = line
	} else if found == "" && strings.HasPrefix(problem, line) {
		problem = ""
	}
}

// poll returns the current document; nil if there is none.
func poll(ctx context.Context) *document {
	text, ok := request(ctx, http.MethodGet, eventsPath, nil)
	if !ok {
		return nil
	}
	found := document{DocumentIncarnation: -1}
	valid := json.Unmarshal([]byte(text), &found) == nil && found.DocumentIncarnation >= 0 && found.Events != nil
	for _, each := range found.Events {
		valid = valid && each != nil && each.EventId != "" && each.Resources != nil
	}
	if !valid {
		report(http.MethodGet, "malformed document")
		return nil
	}
	return &found
}

// isNew returns whether to read the document: it has another incarnation than the last one, and is not an old one.
func isNew(number int64) bool {
	if number < incarnation {
		if olderSince.IsZero() {
			olderSince = time.Now()
		}
		if time.Since(olderSince).Seconds() < olderSeconds {
			return false
		}
	}
	changed := number != incarnation
	incarnation, olderSince = number, time.Time{}
	return changed
}

func handle(ctx context.Context, events []*event) {
	mine := map[string]*event{}
	for _, each := range events {
		for _, resource := range each.Resources {
			if resource == *name {
				mine[each.EventId] = each
			}
		}
	}
	for id, known := range tracked {
		if mine[id] == nil {
			delete(tracked, id)
			say("ended", known, "")
		}
	}
	for _, each := range events {
		known := tracked[each.EventId]
		if mine[each.EventId] != each || (known != nil && known.EventStatus == each.EventStatus) {
			continue
		}
		tracked[each.EventId] = each
		switch {
		case !knownTypes[each.EventType]:
			say("ignored", each, ": unknown event type")
		case each.EventStatus == "Started":
			say("started", each, "")
		case each.EventStatus == "Scheduled":
			say("scheduled", each, ": not before "+each.NotBefore)
			each.ready = prepare(ctx, each)
		}
	}
}

// prepare prepares this VM, once for each event. It returns whether to approve the event.
func prepare(ctx context.Context, each *event) bool {
	if *run != "" {
		shell, option := "/bin/sh", "-c"
		if runtime.GOOS == "windows" {
			shell, option = "cmd", "/C"
		}
		command := exec.Command(shell, option, *run)
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		command.Env = append(os.Environ(),
			"EVENT_ID="+each.EventId, "EVENT_TYPE="+each.EventType, "EVENT_NOT_BEFORE="+each.NotBefore)
		ended := make(chan error, 1)
		go func() { ended <- command.Run() }()
		select {
		case <-ctx.Done(): // the program ends, and leaves the command alone
			return false
		case err := <-ended:
			if err != nil {
				say("not approved", each, fmt.Sprintf(": the command ended with %d", command.ProcessState.ExitCode()))
				return false
			}
		}
	}
	say("prepared", each, "")
	if len(each.Resources) > 1 { // an approval would start the event for all of them
		say("not approved", each, ": it names other VMs too")
		return false
	}
	return true
}

// approve approves prepared events; again if an event is still Scheduled after a while.
func approve(ctx context.Context) {
	for id, known := range tracked {
		if known.ready && known.EventStatus == "Scheduled" && time.Since(known.sent).Seconds() >= *repeat {
			body, _ := json.Marshal(map[string]any{"StartRequests": []map[string]string{{"EventId": id}}})
			if _, ok := request(ctx, http.MethodPost, eventsPath, strings.NewReader(string(body))); ok {
				known.sent = time.Now()
				say("approved", known, "")
			}
		}
	}
}

func say(step string, each *event, detail string) {
	fmt.Printf("%s %s %s%s\n", step, each.EventType, each.EventId, detail)
}
