package endpoint

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// altStack is stack_t of sigaltstack(2).
type altStack struct {
	base  uintptr
	flags int32
	_     int32
	size  uintptr
}

// While instructions are counted, signals get a stack below all others: Callgrind takes the handler of a signal for ended
// where its stack lies above the one that it interrupts, and aborts when it returns. The kernel prefers the main thread for
// signals, and this runs on it.
func init() {
	if os.Getenv("QUICBED_COUNTED") == "" {
		return
	}
	const size = 256 << 10
	low, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_32BIT)
	if err != nil {
		return
	}
	stack := altStack{base: uintptr(unsafe.Pointer(&low[0])), size: size}
	_, _, _ = unix.RawSyscall(unix.SYS_SIGALTSTACK, uintptr(unsafe.Pointer(&stack)), 0, 0)
}
