package contract

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Now tells CLOCK_MONOTONIC in nanoseconds.
func Now() int64 {
	var now unix.Timespec
	// cannot fail: every Linux has this clock
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// CPUTime is what all threads of this process have used, in nanoseconds.
type CPUTime struct {
	User, System int64
}

// CPU tells the CPU time used so far.
func CPU() CPUTime {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return CPUTime{User: usage.Utime.Nano(), System: usage.Stime.Nano()}
}

// Stamp is a time with the CPU time used until then.
type Stamp struct {
	T   int64
	CPU CPUTime
}

// NewStamp takes the time.
func NewStamp() Stamp {
	return Stamp{T: Now(), CPU: CPU()}
}

// runDelay sums the time in nanoseconds that the living threads of this process were ready to run but waited for a
// processor: the second field of /proc/self/task/*/schedstat. Nil without scheduler statistics.
func runDelay() *int64 {
	files, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil || len(files) == 0 {
		return nil
	}
	var sum int64
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // the thread has just ended
		}
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			return nil
		}
		delay, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil
		}
		sum += delay
	}
	return &sum
}

// maxRSS tells the largest resident set of this program in bytes. VmHWM and not getrusage, whose value survives exec.
func maxRSS() *int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		value, found := strings.CutPrefix(line, "VmHWM:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return nil
		}
		bytes := kib * 1024
		return &bytes
	}
	return nil
}
