package contract

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxRequest is the length of the longest request accepted: `GET /`, the 20 digits of a 64-bit number, CRLF.
const MaxRequest = 27

// FormatRequest makes the request of hq-interop for a number of bytes.
func FormatRequest(bytes uint64) []byte {
	return fmt.Appendf(nil, "GET /%d\r\n", bytes)
}

// ParseRequest tells the number of bytes asked for by a complete request; the end of line may be missing.
func ParseRequest(request []byte) (uint64, error) {
	line := strings.TrimSuffix(strings.TrimSuffix(string(request), "\n"), "\r")
	digits, found := strings.CutPrefix(line, "GET /")
	// ParseUint would take a sign
	if found && strings.Trim(digits, "0123456789") == "" {
		if bytes, err := strconv.ParseUint(digits, 10, 64); err == nil {
			return bytes, nil
		}
	}
	return 0, fmt.Errorf("request is not `GET /<bytes>`: %q", request[:min(len(request), MaxRequest)])
}
