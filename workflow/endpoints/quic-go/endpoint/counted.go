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
	const size, asked = 256 << 10, 256 << 20
	low, _, failed := unix.RawSyscall6(unix.SYS_MMAP, asked, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if failed != 0 {
		return
	}
	stack := altStack{base: low, size: size}
	_, _, _ = unix.RawSyscall(unix.SYS_SIGALTSTACK, uintptr(unsafe.Pointer(&stack)), 0, 0)
}
