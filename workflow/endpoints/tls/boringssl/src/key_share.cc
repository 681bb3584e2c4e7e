// The key shares of BoringSSL's TLS (bssl::SSLKeyShare, ssl/internal.h), for timing them without a handshake.
//
// Compiled against the internal headers of the very BoringSSL source that the archive was built from.

#include <string.h>

#include <openssl/bytestring.h>

#include "ssl/internal.h"

namespace {

// Moves what was written to the caller's buffer; false if it does not fit.
bool Take(CBB *cbb, uint8_t *out, size_t room, size_t *length) {
  *length = CBB_len(cbb);
  if (*length > room) {
    return false;
  }
  memcpy(out, CBB_data(cbb), *length);
  return true;
}

}  // namespace

extern "C" {

// A share of the group with this code point; null if there is no such group.
void *quicbed_key_share_new(uint16_t group) { return bssl::SSLKeyShare::Create(group).release(); }

void quicbed_key_share_free(void *share) { bssl::Delete(static_cast<bssl::SSLKeyShare *>(share)); }

// The client's key pair. Returns 1 and writes the public key, or 0.
int quicbed_key_share_generate(void *share, uint8_t *out, size_t room, size_t *length) {
  bssl::ScopedCBB cbb;
  return CBB_init(cbb.get(), 64) && static_cast<bssl::SSLKeyShare *>(share)->Generate(cbb.get()) &&
         Take(cbb.get(), out, room, length);
}

// The server's answer to a client's public key. Returns 1 and writes it, or 0.
int quicbed_key_share_encapsulate(void *share, const uint8_t *peer, size_t peer_length, uint8_t *out, size_t room,
                                  size_t *length) {
  bssl::ScopedCBB cbb;
  bssl::Array<uint8_t> secret;
  uint8_t alert;
  return CBB_init(cbb.get(), 64) &&
         static_cast<bssl::SSLKeyShare *>(share)->Encap(cbb.get(), &secret, &alert, bssl::Span(peer, peer_length)) &&
         Take(cbb.get(), out, room, length);
}

// The client's secret from the server's answer. Returns 1 or 0.
int quicbed_key_share_decapsulate(void *share, const uint8_t *answer, size_t length) {
  bssl::Array<uint8_t> secret;
  uint8_t alert;
  return static_cast<bssl::SSLKeyShare *>(share)->Decap(&secret, &alert, bssl::Span(answer, length));
}

}  // extern "C"
