// Does a new peer speak HTTP/2? What it has sent so far is looked at, and not taken.
#pragma once

namespace kvtier {

enum class FirstWords {
  kNotYet,  // nothing wrong, and not enough
  kHttp2,   // the preface and the settings behind it
  kTls,     // the beginning of a TLS handshake; the rest is another's to check
  kOther,   // something else
  kGone,    // the peer has gone, whatever it has said: it would hear no answer
};

// `fd`: a connected, non-blocking stream socket. Never waits.
FirstWords PeekFirstWords(int fd);

}  // namespace kvtier
