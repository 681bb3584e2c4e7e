//go:build !noop

package endpoint

import "quicbed.internal/contract"

// hasNoop tells whether quic-go is patched to have switches for packet protection.
const hasNoop = false

// protect has nothing to switch.
func protect(*contract.Common) {}

// protection tells what packet protection does: without a patch quic-go has nothing but the standard.
func protection() (aead, headerProtection string) {
	return "standard", "on"
}
