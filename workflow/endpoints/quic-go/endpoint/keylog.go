package endpoint

import (
	"fmt"
	"io"
	"os"
	"sync"

	"quicbed.internal/contract"
)

// KeyLog opens the file of --key-log, which lines are appended to; nil without that option. crypto/tls writes a line in
// one call, and from several connections at once.
func KeyLog(options *contract.Common) (io.Writer, error) {
	if options.KeyLog == "" {
		return nil, nil
	}
	file, err := os.OpenFile(options.KeyLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--key-log: %w", err)
	}
	return &lockedWriter{out: file}, nil
}

type lockedWriter struct {
	mutex sync.Mutex
	out   io.Writer
}

func (w *lockedWriter) Write(line []byte) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.out.Write(line)
}
