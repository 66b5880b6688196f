//go:build !linux

package devstack

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

const canPassDir = false

// childAttr has no word of the parent's death here: a cluster that outlives a
// killed program is ended by the next start on the same directory.
func childAttr(a account, _ syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// serving trusts postmaster.pid, which lies in a folder only the database
// account can write, after asking that the process is a PostgreSQL at all.
func serving(dataDir string) ([]int, error) {
	pid, err := postmasterPID(dataDir)
	if err != nil || pid == 0 {
		return nil, err
	}
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil || !strings.Contains(string(out), "postgres") {
		return nil, nil
	}
	return []int{pid}, nil
}
