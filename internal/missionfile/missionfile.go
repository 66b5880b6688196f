// Package missionfile reads a Mission described in YAML: the objective, its
// definition of done and budget, the Workers to hire and the WorkItems with
// their contracts and dependencies.
//
// The file is written by people, so the hazard is a mistake that is found late
// or explained badly: reading is strict (an unknown field is an error), every
// rule that the protocol would refuse later is checked here first, and each
// error names the line and the field.
package missionfile

import (
	"fmt"
	"os"
	"time"
)

// File is one Mission with everything needed to carry it out.
type File struct {
	Mission     Mission    `yaml:"mission"`
	Workers     []Worker   `yaml:"workers"`
	WorkItems   []WorkItem `yaml:"workItems"`
	ChangeRound *Changes   `yaml:"changeRound"`
}

// Mission is the part that becomes mission.create.
type Mission struct {
	Title            string      `yaml:"title"`
	Objective        string      `yaml:"objective"`
	DefinitionOfDone []Criterion `yaml:"definitionOfDone"`
	Budget           Budget      `yaml:"budget"`
	// Deadline is a span from the start, such as 48h.
	Deadline Span `yaml:"deadline"`
}

// Criterion is one acceptance criterion; Evidence lists the required types.
type Criterion struct {
	ID          string   `yaml:"id"`
	Description string   `yaml:"description"`
	Evidence    []string `yaml:"evidence"`
}

// Budget holds the six limits: money in whole units of the currency with at
// most six decimals, times in seconds, the others as counts. Absent is zero.
type Budget struct {
	Currency            string  `yaml:"currency"`
	Financial           float64 `yaml:"financial"`
	ModelTokens         int64   `yaml:"modelTokens"`
	ToolCalls           int64   `yaml:"toolCalls"`
	ComputeSeconds      int64   `yaml:"computeSeconds"`
	WallClockSeconds    int64   `yaml:"wallClockSeconds"`
	ExternalSideEffects int64   `yaml:"externalSideEffects"`
}

// Worker is an Agent that takes part, with what it can do.
type Worker struct {
	Name           string       `yaml:"name"`
	Capabilities   []Capability `yaml:"capabilities"`
	MaxConcurrency int64        `yaml:"maxConcurrency"`
}

// Capability is a capability id with a version.
type Capability struct {
	ID      string `yaml:"id"`
	Version string `yaml:"version"`
}

// WorkItem is a Work Contract, who should be offered it, and what the Worker
// hands in.
type WorkItem struct {
	ID           string        `yaml:"id"`
	Goal         string        `yaml:"goal"`
	Impact       string        `yaml:"impact"`
	Urgency      string        `yaml:"urgency"`
	DependsOn    []string      `yaml:"dependsOn"`
	Capabilities []Capability  `yaml:"capabilities"`
	Criteria     []Criterion   `yaml:"criteria"`
	Deliverables []Deliverable `yaml:"deliverables"`
	Budget       Budget        `yaml:"budget"`
	Deadline     Span          `yaml:"deadline"`
	Candidates   []string      `yaml:"candidates"`
	Phases       []string      `yaml:"phases"`
	Artifact     Artifact      `yaml:"artifact"`
}

// Deliverable is one required output.
type Deliverable struct {
	ID          string `yaml:"id"`
	Description string `yaml:"description"`
	MediaType   string `yaml:"mediaType"`
}

// Artifact is the content that the Worker produces.
type Artifact struct {
	MediaType string `yaml:"mediaType"`
	Content   string `yaml:"content"`
}

// Changes is the round in which the MissionOwner asks for changes, and the
// corrective WorkItems that answer them.
type Changes struct {
	Comments  string     `yaml:"comments"`
	WorkItems []WorkItem `yaml:"workItems"`
}

// Span is a length of time in Go notation (90s, 15m, 48h).
type Span string

// Duration is the span, or 0 when it is not a positive one.
func (s Span) Duration() time.Duration {
	d, err := time.ParseDuration(string(s))
	if err != nil || d < 0 {
		return 0
	}
	return d
}

// All returns every WorkItem in file order, the corrective ones last.
func (f *File) All() []WorkItem {
	all := append([]WorkItem(nil), f.WorkItems...)
	if f.ChangeRound != nil {
		all = append(all, f.ChangeRound.WorkItems...)
	}
	return all
}

// Load reads and checks the file at path. Every error is an *Error or comes
// from reading the file itself.
func Load(path string) (*File, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the Mission file: %w", err)
	}
	return Parse(path, source)
}
