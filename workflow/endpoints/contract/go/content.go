package contract

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
)

const (
	recordSize = 16
	records    = 4093

	// Period is the number of bytes after which the content repeats.
	Period = recordSize * records
)

// twoPeriods lets a whole period be taken in one piece from any offset.
var twoPeriods = func() []byte {
	made := make([]byte, 0, 2*Period)
	for i := range 2 * records {
		made = fmt.Appendf(made, "quicbed%08x\n", i%records)
	}
	return made
}()

// Content tells the content from an offset on: limit bytes, but at most one period. It must not be changed.
func Content(offset, limit uint64) []byte {
	start := offset % Period
	return twoPeriods[start : start+min(limit, Period)]
}

// Body is what a request asks for: content made in memory, or a file of --www.
type Body struct {
	Length uint64
	file   []byte
	isFile bool
}

// At tells what is sent from an offset on, at most one period. It must not be changed.
func (b Body) At(offset uint64) []byte {
	left := min(b.Length-offset, Period)
	if b.isFile {
		return b.file[offset : offset+left]
	}
	return Content(offset, left)
}

// savedAtOnce is the number of bytes written to a saved file at once.
const savedAtOnce = 1 << 20

// Checker compares what a client receives, in order, with the content, or saves it.
type Checker struct {
	expected, received uint64
	wrong              bool
	wrongAt            uint64
	saves              bool
	saved              *bufio.Writer
	saveError          error
}

// NewChecker makes a checker for a number of bytes.
func NewChecker(expected uint64) *Checker {
	return &Checker{expected: expected}
}

// NewSaver makes a checker that writes what it receives to a new file, compares nothing and expects any number of bytes.
func NewSaver(path string) *Checker {
	file, err := os.Create(path)
	return &Checker{
		expected: math.MaxUint64, saves: true, saved: bufio.NewWriterSize(file, savedAtOnce), saveError: err,
	}
}

// Requested tells the number of bytes asked for; of a file that is saved, which has no size before its end, that of
// those received so far.
func (c *Checker) Requested() uint64 {
	if c.saves {
		return c.received
	}
	return c.expected
}

// Received tells the number of bytes so far.
func (c *Checker) Received() uint64 { return c.received }

// Receive takes the next bytes.
func (c *Checker) Receive(data []byte) {
	if c.saves {
		c.received += uint64(len(data))
		if c.saveError == nil {
			_, c.saveError = c.saved.Write(data)
		}
		return
	}
	for len(data) > 0 {
		expected := Content(c.received, uint64(len(data)))
		piece := data[:len(expected)]
		if !c.wrong && !bytes.Equal(piece, expected) {
			c.wrong = true
			for i := range piece {
				if piece[i] != expected[i] {
					c.wrongAt = c.received + uint64(i)
					break
				}
			}
		}
		c.received += uint64(len(piece))
		data = data[len(piece):]
	}
}

// Verdict tells, when the stream has ended, what differs from the content; nil if nothing does.
func (c *Checker) Verdict() error {
	if c.saves {
		if c.saveError == nil {
			c.saveError = c.saved.Flush()
		}
		if c.saveError != nil {
			return fmt.Errorf("--save: %w", c.saveError)
		}
		return nil
	}
	if c.wrong {
		return fmt.Errorf("content differs at byte %d", c.wrongAt)
	}
	if c.received != c.expected {
		return fmt.Errorf("received %d bytes of content instead of %d", c.received, c.expected)
	}
	return nil
}
