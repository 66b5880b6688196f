package devstack

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// watchdogScript waits for the end of its standard input, which only the death
// of the test process brings, and then ends the cluster and removes its folder.
// The kernel already told PostgreSQL on Linux; elsewhere this is the only word.
const watchdogScript = `
dir=$1
read -r _ || :
pid=$(head -n 1 "$dir/postgres/data/postmaster.pid" 2>/dev/null)
case "$pid" in
'' | *[!0-9]*) pid= ;;
esac
if [ -n "$pid" ] && [ -d /proc/self ] && [ "$(readlink "/proc/$pid/cwd")" != "$dir/postgres/data" ]; then
	pid=
fi
n=0
while [ -n "$pid" ] && kill -QUIT "$pid" 2>/dev/null && [ "$n" -lt 100 ]; do
	sleep 0.1
	n=$((n + 1))
done
rm -rf -- "$dir"
`

// startWatchdog runs the watchdog in a process group of its own, so that an
// interrupt typed at the terminal leaves it alive. It holds none of the test's
// output: go test would wait for it.
func startWatchdog(dir string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "missionweave-watchdog", dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return fmt.Errorf("start the watchdog: %w", err)
	}
	leash = append(leash, w)
	return cmd.Process.Release()
}

// leash keeps the write ends of the watchdogs' pipes open, and out of the
// garbage collector's reach, until the process is gone.
var leash []*os.File

// withDatabase is databaseURL with another database name. Both spellings of the
// PostgreSQL client are understood: a URL and keyword=value pairs.
func withDatabase(databaseURL, name string) (string, error) {
	if !strings.Contains(databaseURL, "://") {
		return databaseURL + " dbname=" + name, nil
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", fmt.Errorf("the database URL cannot be read") // the cause repeats the password
	}
	u.Path = "/" + name
	return u.String(), nil
}
