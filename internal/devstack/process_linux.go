package devstack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// canPassDir says that a child can open an inherited directory descriptor as
// /proc/self/fd/N: the kernel then follows no path.
const canPassDir = true

// childAttr puts the child into a process group of its own and has the kernel
// send it onParentDeath when the thread that started it dies. The caller keeps
// that thread alive as long as the child.
func childAttr(a account, onParentDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onParentDeath}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// serving lists the PostgreSQL processes that work in dataDir. The working
// folder is compared by identity and not by name, since the folder may have
// been handed over as a descriptor; dead processes nobody waited for have none.
func serving(dataDir string) ([]int, error) {
	want, err := os.Stat(dataDir)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		if err != nil || !strings.HasPrefix(string(comm), "post") {
			continue
		}
		cwd, err := os.Stat(filepath.Join("/proc", e.Name(), "cwd"))
		if err != nil || !os.SameFile(cwd, want) {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
