package contract

import (
	"bytes"
	"fmt"
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

// Checker compares what a client receives, in order, with the content.
type Checker struct {
	expected, received uint64
	wrong              bool
	wrongAt            uint64
}

// NewChecker makes a checker for a number of bytes.
func NewChecker(expected uint64) *Checker {
	return &Checker{expected: expected}
}

// Received tells the number of bytes so far.
func (c *Checker) Received() uint64 { return c.received }

// Receive takes the next bytes.
func (c *Checker) Receive(data []byte) {
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
	if c.wrong {
		return fmt.Errorf("content differs at byte %d", c.wrongAt)
	}
	if c.received != c.expected {
		return fmt.Errorf("received %d bytes of content instead of %d", c.received, c.expected)
	}
	return nil
}
