package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Marks of a journal, in the order in which they are made.
const (
	proposed = "proposed" // this machine proposed the Action
	started  = "started"  // it may have begun
	finished = "finished" // holds what came of it
)

// journal is what this machine remembers of one Action, in a folder of its own.
// Every mark is on disk before what it announces happens. So after a crash
//
//	proposed only      it has not begun: it is executed now
//	started            it may have begun: it is not executed again
//	finished           it is over: the same result is reported again
//
// and the command runs at most once, if need be not at all.
type journal struct{ dir string }

// folder is where the command runs.
func (j journal) folder() string { return filepath.Join(j.dir, "empty") }

func (j journal) has(mark string) bool {
	_, err := os.Stat(filepath.Join(j.dir, mark))
	return err == nil
}

// mark makes a mark; one that is there already stays.
func (j journal) mark(name string) error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	if err := j.write(name, nil); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// once calls execute unless it may have been called before, and returns its
// result, also when an earlier run got it.
func (j journal) once(execute func() result) (result, error) {
	err := j.write(started, nil)
	switch {
	case err == nil:
		r := execute()
		text, err := json.Marshal(r)
		if err != nil {
			return r, err
		}
		return r, j.write(finished, text)
	case !errors.Is(err, fs.ErrExist):
		return result{}, err
	}
	text, err := os.ReadFile(filepath.Join(j.dir, finished))
	if errors.Is(err, fs.ErrNotExist) {
		return result{Failure: "An earlier run was interrupted: the command may have run and is not run again"}, nil
	}
	if err != nil {
		return result{}, err
	}
	var r result
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", j.dir, err)
	}
	return r, nil
}

// write makes a file that is either whole or not there, also after a power cut.
// It fails with fs.ErrExist when there is one.
func (j journal) write(name string, content []byte) error {
	temporary, err := os.CreateTemp(j.dir, name+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(content)
	if err := errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := os.Link(temporary.Name(), filepath.Join(j.dir, name)); err != nil {
		return err
	}
	folder, err := os.Open(j.dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
