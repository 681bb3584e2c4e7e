//go:build noop

package endpoint

import (
	"github.com/quic-go/quic-go"

	"quicbed.internal/contract"
)

// hasNoop tells whether quic-go is patched to have switches for packet protection.
const hasNoop = true

// protect sets the switches that workflow/crypto/patches/quic-go/noop.patch adds.
func protect(options *contract.Common) {
	quic.SetPacketProtection(options.AEAD == "standard", options.HeaderProtection == "on")
}

// protection tells what packet protection does, found out by using it.
func protection() (aead, headerProtection string) {
	aead, headerProtection = "noop", "off"
	standard, headers := quic.ProbePacketProtection()
	if standard {
		aead = "standard"
	}
	if headers {
		headerProtection = "on"
	}
	return aead, headerProtection
}
