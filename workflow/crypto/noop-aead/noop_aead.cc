// AEADs that do no cryptography, for BoringSSL: the payload stays as it is and the tag is constant.
//
// They are entered through EVP_AEAD_CTX_seal* and EVP_AEAD_CTX_open* like any other, so a program that uses them still
// pays for everything around the cipher: key schedule, nonces, BoringSSL's argument checks and dispatch, and the tag on
// the wire. Key, nonce and tag have the lengths of the suites of TLS 1.3.
//
// Compiled against the internal headers of the very BoringSSL source that the archive was built from.

#include <string.h>

#include <algorithm>

#include <openssl/aead.h>
#include <openssl/cipher.h>
#include <openssl/err.h>

#include "crypto/fipsmodule/cipher/internal.h"

namespace {

constexpr uint8_t kNonceLength = 12;
constexpr uint8_t kTagLength = 16;
constexpr uint8_t kTagByte = 0x2a;

int Init(EVP_AEAD_CTX *ctx, const uint8_t *, size_t, size_t tag_length) {
  if (tag_length == EVP_AEAD_DEFAULT_TAG_LENGTH) {
    tag_length = kTagLength;
  }
  if (tag_length != kTagLength) {
    OPENSSL_PUT_ERROR(CIPHER, CIPHER_R_TAG_TOO_LARGE);
    return 0;
  }
  ctx->tag_len = kTagLength;
  return 1;
}

void Cleanup(EVP_AEAD_CTX *) {}

// Moves each input to its output; in-place operation, which is what QUIC libraries do, costs nothing.
void Copy(bssl::Span<const CRYPTO_IOVEC> iovecs) {
  for (const CRYPTO_IOVEC &iovec : iovecs) {
    if (iovec.out != iovec.in && iovec.len != 0) {
      memmove(iovec.out, iovec.in, iovec.len);
    }
  }
}

int Seal(const EVP_AEAD_CTX *, bssl::Span<const CRYPTO_IOVEC> iovecs, bssl::Span<uint8_t> out_tag, size_t *out_tag_length,
         bssl::Span<const uint8_t> nonce, bssl::Span<const CRYPTO_IVEC>) {
  if (out_tag.size() < kTagLength) {
    OPENSSL_PUT_ERROR(CIPHER, CIPHER_R_BUFFER_TOO_SMALL);
    return 0;
  }
  if (nonce.size() != kNonceLength) {
    OPENSSL_PUT_ERROR(CIPHER, CIPHER_R_INVALID_NONCE_SIZE);
    return 0;
  }
  Copy(iovecs);
  memset(out_tag.data(), kTagByte, kTagLength);
  *out_tag_length = kTagLength;
  return 1;
}

int Open(const EVP_AEAD_CTX *, bssl::Span<const CRYPTO_IOVEC> iovecs, bssl::Span<const uint8_t> nonce,
         bssl::Span<const uint8_t> in_tag, bssl::Span<const CRYPTO_IVEC>) {
  if (nonce.size() != kNonceLength) {
    OPENSSL_PUT_ERROR(CIPHER, CIPHER_R_INVALID_NONCE_SIZE);
    return 0;
  }
  // Bytes behind the last packet of a datagram are no packet: quiche leaves it to the AEAD to find that out.
  const bool tagged = std::all_of(in_tag.begin(), in_tag.end(), [](uint8_t byte) { return byte == kTagByte; });
  if (in_tag.size() != kTagLength || !tagged) {
    OPENSSL_PUT_ERROR(CIPHER, CIPHER_R_BAD_DECRYPT);
    return 0;
  }
  Copy(iovecs);
  return 1;
}

constexpr EVP_AEAD MakeNoop(uint8_t key_length) {
  return EVP_AEAD{
      key_length, kNonceLength, /*overhead=*/kTagLength, /*max_tag_len=*/kTagLength,
      Init,       /*init_with_direction=*/nullptr, Cleanup,
      /*openv=*/nullptr, Seal, Open, /*get_iv=*/nullptr, /*tag_len=*/nullptr,
  };
}

constexpr EVP_AEAD kNoop128 = MakeNoop(16);
constexpr EVP_AEAD kNoop256 = MakeNoop(32);

}  // namespace

// The AEAD with this key length in bytes (16 or 32), or null.
extern "C" const EVP_AEAD *quicbed_noop_aead(size_t key_length) {
  switch (key_length) {
    case 16:
      return &kNoop128;
    case 32:
      return &kNoop256;
    default:
      return nullptr;
  }
}
