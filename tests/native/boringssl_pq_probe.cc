// BoringSSL with the groups and signatures of liboqs: handshakes in memory, key shares against the core, certificates.
//
//   boringssl_pq_probe groups | signatures                       one code point a line, of those TLS takes
//   boringssl_pq_probe handshake <group> <scheme> <certificates> [<first group>]
//   boringssl_pq_probe share <group>
//   boringssl_pq_probe certificate <scheme> <certificates>
//
// Groups and schemes are code points. <certificates> holds ca.pem, server.pem and server.key. With <first group>, the
// client offers a share of that, which the server does not take. Exits with 0 if all is well, with 1 and one line on
// stderr if not.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include <openssl/bytestring.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "algorithms.h"
#include "pq.h"
#include "ssl/internal.h"

namespace {

using Bytes = std::vector<uint8_t>;

[[noreturn]] void Fail(const std::string &what) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    fprintf(stderr, "%s: %s\n", what.c_str(), reason ? reason : "no reason given");
    exit(1);
}

void Check(bool good, const std::string &what) {
    if (!good) {
        Fail(what);
    }
}

uint16_t CodePoint(const char *text) { return static_cast<uint16_t>(strtoul(text, nullptr, 16)); }

const quicbed_group &Group(uint16_t id) {
    for (const auto &group : quicbed_groups) {
        if (group.code_point == id) {
            return group;
        }
    }
    Fail("no such group");
}

bssl::UniquePtr<SSL_CTX> Context(const std::vector<uint16_t> &groups, uint16_t scheme) {
    bssl::UniquePtr<SSL_CTX> context(SSL_CTX_new(TLS_method()));
    Check(context && SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION), "context");
    Check(SSL_CTX_set1_group_ids(context.get(), groups.data(), groups.size()), "groups");
    Check(SSL_CTX_set_verify_algorithm_prefs(context.get(), &scheme, 1), "schemes to verify");
    Check(SSL_CTX_set_signing_algorithm_prefs(context.get(), &scheme, 1), "schemes to sign");
    return context;
}

void Groups() {
    for (const auto &group : quicbed_groups) {
        bssl::UniquePtr<SSL_CTX> context(SSL_CTX_new(TLS_method()));
        if (SSL_CTX_set1_group_ids(context.get(), &group.code_point, 1)) {
            printf("%04x %s\n", group.code_point, SSL_get_group_name(group.code_point));
        }
    }
    std::vector<const char *> names(SSL_get_all_group_names(nullptr, 0));
    Check(SSL_get_all_group_names(names.data(), names.size()) == names.size(), "names of groups");
    for (const char *name : names) {
        bssl::UniquePtr<SSL_CTX> context(SSL_CTX_new(TLS_method()));
        Check(SSL_CTX_set1_groups_list(context.get(), name), std::string("the group called ") + name);
    }
}

void Signatures() {
    for (const auto &signature : quicbed_signatures) {
        bssl::UniquePtr<SSL_CTX> context(SSL_CTX_new(TLS_method()));
        if (SSL_CTX_set_verify_algorithm_prefs(context.get(), &signature.code_point, 1)) {
            printf("%04x %s\n", signature.code_point, SSL_get_signature_algorithm_name(signature.code_point, 1));
        }
    }
}

void Handshake(uint16_t group, uint16_t scheme, const std::string &directory, const char *first) {
    std::vector<uint16_t> offered{group};
    if (first) {
        offered.insert(offered.begin(), CodePoint(first));
    }
    auto client_context = Context(offered, scheme), server_context = Context({group}, scheme);
    const std::string chain = directory + "/server.pem", key = directory + "/server.key", ca = directory + "/ca.pem";
    Check(SSL_CTX_use_certificate_chain_file(server_context.get(), chain.c_str()), chain);
    Check(SSL_CTX_use_PrivateKey_file(server_context.get(), key.c_str(), SSL_FILETYPE_PEM), key);
    Check(SSL_CTX_check_private_key(server_context.get()), key);
    Check(SSL_CTX_load_verify_locations(client_context.get(), ca.c_str(), nullptr), ca);
    SSL_CTX_set_verify(client_context.get(), SSL_VERIFY_PEER, nullptr);

    bssl::UniquePtr<SSL> client(SSL_new(client_context.get())), server(SSL_new(server_context.get()));
    if (first) {
        const uint16_t share = CodePoint(first);
        Check(SSL_set1_client_key_shares(client.get(), &share, 1), "the first group");
    }
    BIO *one, *other;
    Check(BIO_new_bio_pair(&one, 1 << 18, &other, 1 << 18), "BIO pair");
    SSL_set_bio(client.get(), one, one);
    SSL_set_bio(server.get(), other, other);
    SSL_set_connect_state(client.get());
    SSL_set_accept_state(server.get());
    bool done = false;
    for (int flight = 0; flight < 8 && !done; flight++) {
        done = true;
        for (SSL *side : {client.get(), server.get()}) {
            const int result = SSL_do_handshake(side);
            if (result != 1) {
                done = false;
                const int error = SSL_get_error(side, result);
                Check(error == SSL_ERROR_WANT_READ, SSL_is_server(side) ? "the server" : "the client");
            }
        }
    }
    Check(done, "the handshake does not end");
    Check(SSL_get_group_id(client.get()) == group && SSL_get_group_id(server.get()) == group, "group agreed on");
    Check(SSL_get_peer_signature_algorithm(client.get()) == scheme, "scheme of the server");
    Check(SSL_get_verify_result(client.get()) == X509_V_OK, "the server's certificate");
    Check(SSL_used_hello_retry_request(client.get()) == (first != nullptr), "HelloRetryRequest");
    uint8_t sent[32], received[32];
    Check(SSL_export_keying_material(client.get(), sent, 32, "probe", 5, nullptr, 0, 0) &&
              SSL_export_keying_material(server.get(), received, 32, "probe", 5, nullptr, 0, 0) &&
              memcmp(sent, received, 32) == 0,
          "exported secret");
    SSL *ends[] = {client.get(), server.get()};
    for (SSL *end : ends) {
        uint8_t byte = 'x';
        Check(SSL_write(end, &byte, 1) == 1 && SSL_read(end == ends[0] ? ends[1] : ends[0], &byte, 1) == 1, "data");
    }
}

// What one side of a key exchange writes and the secret it has.
struct Answer {
    Bytes share, secret;
    uint8_t alert = 0;
    bool good;
};

Bytes Generate(bssl::SSLKeyShare *share) {
    bssl::ScopedCBB cbb;
    Check(CBB_init(cbb.get(), 64) && share->Generate(cbb.get()), "key generation");
    return Bytes(CBB_data(cbb.get()), CBB_data(cbb.get()) + CBB_len(cbb.get()));
}

Answer Encap(uint16_t group, const Bytes &peer) {
    Answer answer;
    bssl::ScopedCBB cbb;
    bssl::Array<uint8_t> secret;
    Check(CBB_init(cbb.get(), 64), "buffer");
    answer.good = bssl::SSLKeyShare::Create(group)->Encap(cbb.get(), &secret, &answer.alert,
                                                          bssl::Span(peer.data(), peer.size()));
    answer.share.assign(CBB_data(cbb.get()), CBB_data(cbb.get()) + CBB_len(cbb.get()));
    answer.secret.assign(secret.begin(), secret.end());
    return answer;
}

Answer Decap(bssl::SSLKeyShare *share, const Bytes &ciphertext) {
    Answer answer;
    bssl::Array<uint8_t> secret;
    answer.good = share->Decap(&secret, &answer.alert, bssl::Span(ciphertext.data(), ciphertext.size()));
    answer.secret.assign(secret.begin(), secret.end());
    return answer;
}

Bytes Joined(Bytes first, const Bytes &second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

void Refused(const Answer &answer, const std::string &what) {
    Check(!answer.good, what + " is taken");
    Check(answer.alert == SSL_AD_ILLEGAL_PARAMETER, what + ": wrong alert");
    Check(answer.secret.empty(), what + ": there is a secret");
    ERR_clear_error();
}

void Share(uint16_t id) {
    const quicbed_group &group = Group(id);
    auto client = bssl::SSLKeyShare::Create(id);
    Check(client && client->GroupID() == id, "key share");
    const Bytes public_key = Generate(client.get());

    // The server's answer composed of what the core and the (EC)DH group alone compute.
    const quicbed_kem *kem = quicbed_kem_find(group.liboqs);
    Check(kem != nullptr, "the core's KEM");
    const size_t kem_len = quicbed_kem_public_key_bytes(kem);
    Check(public_key.size() >= kem_len, "length of the share");
    const auto middle = group.pq_first ? public_key.begin() + kem_len : public_key.end() - kem_len;
    const Bytes head(public_key.begin(), middle), tail(middle, public_key.end());
    Bytes ciphertext(quicbed_kem_ciphertext_bytes(kem)), secret(quicbed_kem_shared_secret_bytes(kem));
    Check(quicbed_kem_encapsulate(kem, ciphertext.data(), secret.data(), (group.pq_first ? head : tail).data()),
          "the core's encapsulation");
    if (group.classical) {
        uint16_t classical = 0;
        for (const auto &other : quicbed_groups) {
            classical = strcmp(other.name, group.classical) == 0 ? other.code_point : classical;
        }
        const Answer answer = Encap(classical, group.pq_first ? tail : head);
        Check(answer.good, "the (EC)DH group's answer");
        ciphertext = group.pq_first ? Joined(ciphertext, answer.share) : Joined(answer.share, ciphertext);
        secret = group.pq_first ? Joined(secret, answer.secret) : Joined(answer.secret, secret);
    }
    const Answer received = Decap(client.get(), ciphertext);
    Check(received.good && received.secret == secret, "the secret of the core");

    // Both sides in BoringSSL, and shares of a wrong length.
    const Answer answer = Encap(id, public_key);
    Check(answer.good && answer.share.size() == ciphertext.size(), "encapsulation");
    Check(Decap(client.get(), answer.share).secret == answer.secret, "decapsulation");
    for (size_t length : {size_t{0}, size_t{1}, kem_len - 1, public_key.size() - 1, public_key.size() + 1}) {
        Bytes wrong = public_key;
        wrong.resize(length);
        Refused(Encap(id, wrong), "a client's share of " + std::to_string(length) + " bytes");
    }
    for (size_t length : {size_t{0}, size_t{1}, answer.share.size() - 1, answer.share.size() + 1}) {
        Bytes wrong = answer.share;
        wrong.resize(length);
        Refused(Decap(client.get(), wrong), "a server's share of " + std::to_string(length) + " bytes");
    }
    printf("%zu %zu %zu\n", public_key.size(), answer.share.size(), answer.secret.size());
}

bssl::UniquePtr<BIO> Open(const std::string &path) {
    bssl::UniquePtr<BIO> file(BIO_new_file(path.c_str(), "r"));
    Check(file != nullptr, path);
    return file;
}

bssl::UniquePtr<X509> Certificate(const std::string &path) {
    bssl::UniquePtr<X509> certificate(PEM_read_bio_X509(Open(path).get(), nullptr, nullptr, nullptr));
    Check(certificate != nullptr, path);
    return certificate;
}

int Verified(X509 *ca, X509 *leaf) {
    bssl::UniquePtr<X509_STORE> store(X509_STORE_new());
    bssl::UniquePtr<X509_STORE_CTX> context(X509_STORE_CTX_new());
    Check(X509_STORE_add_cert(store.get(), ca) && X509_STORE_CTX_init(context.get(), store.get(), leaf, nullptr),
          "store of certificates");
    X509_verify_cert(context.get());
    return X509_STORE_CTX_get_error(context.get());
}

Bytes Encoded(EVP_PKEY *key, int (*marshal)(CBB *, const EVP_PKEY *)) {
    bssl::ScopedCBB cbb;
    Check(CBB_init(cbb.get(), 64) && marshal(cbb.get(), key), "encoding of a key");
    return Bytes(CBB_data(cbb.get()), CBB_data(cbb.get()) + CBB_len(cbb.get()));
}

bssl::UniquePtr<EVP_PKEY> Decoded(const Bytes &bytes, EVP_PKEY *(*parse)(CBS *)) {
    CBS cbs;
    CBS_init(&cbs, bytes.data(), bytes.size());
    return bssl::UniquePtr<EVP_PKEY>(parse(&cbs));
}

void Keys(uint16_t scheme, const std::string &directory) {
    auto ca = Certificate(directory + "/ca.pem"), leaf = Certificate(directory + "/server.pem");
    Check(Verified(ca.get(), leaf.get()) == X509_V_OK, "the certificate of the CA");
    const ASN1_BIT_STRING *signature;
    X509_get0_signature(&signature, nullptr, leaf.get());
    // X509_dup parses anew what this changes.
    const_cast<uint8_t *>(ASN1_STRING_get0_data(signature))[ASN1_STRING_length(signature) / 2] ^= 1;
    bssl::UniquePtr<X509> changed(X509_dup(leaf.get()));
    Check(Verified(ca.get(), changed.get()) == X509_V_ERR_CERT_SIGNATURE_FAILURE, "a changed signature");
    ERR_clear_error();

    bssl::UniquePtr<EVP_PKEY> key(
        PEM_read_bio_PrivateKey(Open(directory + "/server.key").get(), nullptr, nullptr, nullptr));
    Check(key != nullptr, "server.key");
    bssl::UniquePtr<EVP_PKEY> public_key(X509_get_pubkey(leaf.get()));
    Check(public_key && EVP_PKEY_id(public_key.get()) == SSL_get_signature_algorithm_key_type(scheme), "type of the key");
    Check(X509_check_private_key(leaf.get(), key.get()), "server.key");
    // With another last byte it is no key any more, or not that of the certificate.
    char *name, *header;
    uint8_t *der;
    long der_len;
    Check(PEM_read_bio(Open(directory + "/server.key").get(), &name, &header, &der, &der_len), "PEM of server.key");
    Bytes other(der, der + der_len);
    for (void *part : {static_cast<void *>(name), static_cast<void *>(header), static_cast<void *>(der)}) {
        OPENSSL_free(part);
    }
    other.back() ^= 1;
    auto other_key = Decoded(other, EVP_parse_private_key);
    Check(!other_key || !X509_check_private_key(leaf.get(), other_key.get()), "a changed server.key is taken");
    ERR_clear_error();

    const Bytes message(100, 'm');
    Bytes made(EVP_PKEY_size(key.get()));
    size_t length = made.size();
    bssl::ScopedEVP_MD_CTX sign;
    Check(EVP_DigestSignInit(sign.get(), nullptr, nullptr, nullptr, key.get()) &&
              EVP_DigestSign(sign.get(), made.data(), &length, message.data(), message.size()),
          "signing");
    Check(length == made.size(), "length of the signature");
    auto verify = [&](const Bytes &of, size_t bytes) {
        bssl::ScopedEVP_MD_CTX context;
        const bool good = EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, public_key.get()) &&
                          EVP_DigestVerify(context.get(), made.data(), bytes, of.data(), of.size());
        ERR_clear_error();
        return good;
    };
    Check(verify(message, length), "verifying");
    Check(!verify(Bytes(100, 'n'), length), "the signature of another message is taken");
    Check(!verify(message, length - 1), "a signature cut short is taken");
    Check(!verify(message, 0), "no signature is taken");

    // A public key cannot sign, and both keys survive being written.
    bssl::ScopedEVP_MD_CTX without;
    length = made.size();
    Check(!EVP_DigestSignInit(without.get(), nullptr, nullptr, nullptr, public_key.get()) ||
              !EVP_DigestSign(without.get(), made.data(), &length, message.data(), message.size()),
          "a public key signs");
    ERR_clear_error();
    const Bytes spki = Encoded(key.get(), EVP_marshal_public_key), info = Encoded(key.get(), EVP_marshal_private_key);
    auto again = Decoded(spki, EVP_parse_public_key), again_private = Decoded(info, EVP_parse_private_key);
    Check(again && EVP_PKEY_eq(again.get(), public_key.get()) == 1, "the public key, written and read");
    Check(again_private && EVP_PKEY_eq(again_private.get(), public_key.get()) == 1, "the private key, written and read");
    Check(Encoded(again_private.get(), EVP_marshal_private_key) == info, "the private key, written again");
}

// Keys whose raw value is a byte too short or too long are refused. Every length within the DER is corrected.
void WrongKeys(const quicbed_signature &signature) {
    const quicbed_sig *sig = quicbed_sig_find(signature.liboqs);
    const size_t public_len = quicbed_sig_public_key_bytes(sig), secret_len = quicbed_sig_secret_key_bytes(sig);
    for (int extra : {-1, 0, 1}) {
        bssl::ScopedCBB spki, info;
        CBB sequence, algorithm, bits, octets, keys;
        const Bytes raw(public_len + extra), both(secret_len + public_len + extra);
        Check(CBB_init(spki.get(), 64) && CBB_add_asn1(spki.get(), &sequence, CBS_ASN1_SEQUENCE) &&
                  CBB_add_asn1(&sequence, &algorithm, CBS_ASN1_SEQUENCE) &&
                  CBB_add_bytes(&algorithm, signature.oid_der, signature.oid_der_len) &&
                  CBB_add_asn1(&sequence, &bits, CBS_ASN1_BITSTRING) && CBB_add_u8(&bits, 0) &&
                  CBB_add_bytes(&bits, raw.data(), raw.size()) && CBB_flush(spki.get()),
              "SubjectPublicKeyInfo");
        Check(CBB_init(info.get(), 64) && CBB_add_asn1(info.get(), &sequence, CBS_ASN1_SEQUENCE) &&
                  CBB_add_asn1_uint64(&sequence, 0) && CBB_add_asn1(&sequence, &algorithm, CBS_ASN1_SEQUENCE) &&
                  CBB_add_bytes(&algorithm, signature.oid_der, signature.oid_der_len) &&
                  CBB_add_asn1(&sequence, &octets, CBS_ASN1_OCTETSTRING) &&
                  CBB_add_asn1(&octets, &keys, CBS_ASN1_OCTETSTRING) &&
                  CBB_add_bytes(&keys, both.data(), both.size()) && CBB_flush(info.get()),
              "PrivateKeyInfo");
        const Bytes of_spki(CBB_data(spki.get()), CBB_data(spki.get()) + CBB_len(spki.get()));
        const Bytes of_info(CBB_data(info.get()), CBB_data(info.get()) + CBB_len(info.get()));
        const std::string what = "a key with " + std::to_string(extra) + " bytes more";
        Check((Decoded(of_spki, EVP_parse_public_key) != nullptr) == (extra == 0), what + ", public");
        Check((Decoded(of_info, EVP_parse_private_key) != nullptr) == (extra == 0), what + ", private");
        ERR_clear_error();
    }
}

}  // namespace

int main(int argc, char **argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "groups" && argc == 2) {
        Groups();
    } else if (what == "signatures" && argc == 2) {
        Signatures();
    } else if (what == "handshake" && (argc == 5 || argc == 6)) {
        Handshake(CodePoint(argv[2]), CodePoint(argv[3]), argv[4], argc == 6 ? argv[5] : nullptr);
    } else if (what == "share" && argc == 3) {
        Share(CodePoint(argv[2]));
    } else if (what == "certificate" && argc == 4) {
        const uint16_t scheme = CodePoint(argv[2]);
        Keys(scheme, argv[3]);
        for (const auto &signature : quicbed_signatures) {
            // BoringSSL has ML-DSA of its own
            if (signature.code_point == scheme && signature.liboqs && strncmp(signature.name, "mldsa", 5) != 0) {
                WrongKeys(signature);
            }
        }
    } else {
        fprintf(stderr, "usage: see the head of the source\n");
        return 2;
    }
    return 0;
}
