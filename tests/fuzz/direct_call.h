// Calls of a service's handlers without gRPC between: what it does with a reactor, one reaction at
// a time and on the caller's thread. Requests come as bytes, answers become bytes.
//
//   UnaryExchange<v1::DrainRequest, v1::DrainResponse> call(arrival);
//   if (call.Parse(bytes)) call.Begin([&](auto* context, auto* request, auto* response) {
//     return service->Drain(context, request, response);
//   });
//   if (call.finished()) ... call.status() ...
//
// gRPC has these interfaces for mocks: grpcpp/support/server_callback.h.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "server/core/mutex.h"

namespace kvtier::fuzz {

// What a call comes with beside its request.
struct Arrival {
  std::string peer;  // as ServerContext::peer() says it
  absl::Time deadline = absl::InfiniteFuture();
  std::string request_id;   // metadata; empty: none
  std::string certificate;  // the name in it, of a client that comes by TLS; empty: none
};

class DirectContext final : public grpc::CallbackServerContext {
 public:
  explicit DirectContext(Arrival arrival);
  const std::string& peer_name() const { return arrival_.peer; }

 private:
  const Arrival arrival_;
};

// One call, of whatever kind. It is over when `done`; to be destroyed then alone.
class Exchange {
 public:
  explicit Exchange(Arrival arrival) : context_(std::move(arrival)) {}
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // The client has gone. Nothing once the call is done.
  void Cancel();
  // The reactions to what is done by now. False: to none.
  virtual bool React() = 0;
  bool done() const { return done_; }

  // The status is there. Another thread may bring it: an alarm of gRPC's.
  bool finished() const KVTIER_EXCLUDES(mutex_);
  // False: not within `patience`, by the machine's clock.
  bool WaitUntilFinished(absl::Duration patience) KVTIER_EXCLUDES(mutex_);
  grpc::Status status() const KVTIER_EXCLUDES(mutex_);
  // Messages that the client has, as bytes.
  std::deque<std::string>& answers() { return answers_; }

 protected:
  void SetFinished(grpc::Status status) KVTIER_EXCLUDES(mutex_);
  // What no reactor of ours does: ends the process.
  static void Unused();
  // The last reaction, which deletes the reactor. False: not yet, or it was before.
  bool ReactToEnd();

  DirectContext context_;
  grpc::internal::ServerReactor* reactor_ = nullptr;  // until done
  std::deque<std::string> answers_;

 private:
  bool done_ = false;
  mutable Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;
  grpc::Status status_ KVTIER_GUARDED_BY(mutex_);
};

template <typename Request, typename Response>
class UnaryExchange final : public Exchange, public grpc::ServerCallbackUnary {
 public:
  using Exchange::Exchange;
  // False: gRPC would refuse it, and no handler see it.
  bool Parse(const std::string& bytes) { return request_->ParseFromString(bytes); }
  template <typename Handler>
  void Begin(const Handler& handler) {
    grpc::ServerUnaryReactor* const reactor = handler(&context_, request_.get(), response_.get());
    reactor_ = reactor;
    BindReactor(reactor);
  }
  bool React() override {
    if (!finished() || this->done()) return false;
    if (status().ok()) answers_.push_back(response_->SerializeAsString());
    return ReactToEnd();
  }

  void Finish(grpc::Status status) override { SetFinished(std::move(status)); }
  void SendInitialMetadata() override {}

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  // On the heap: who reads or writes one after the end is found out.
  const std::unique_ptr<Request> request_ = std::make_unique<Request>();
  const std::unique_ptr<Response> response_ = std::make_unique<Response>();
};

template <typename Request, typename Response>
class WriteExchange final : public Exchange, public grpc::ServerCallbackWriter<Response> {
 public:
  using Exchange::Exchange;
  bool Parse(const std::string& bytes) { return request_->ParseFromString(bytes); }
  template <typename Handler>
  void Begin(const Handler& handler) {
    grpc::ServerWriteReactor<Response>* const reactor = handler(&context_, request_.get());
    reactor_ = writer_ = reactor;
    this->BindReactor(reactor);
  }
  // The client reads no more.
  void Break() { broken_ = true; }
  bool React() override {
    if (this->done()) return false;
    if (written_ == nullptr) return finished() && ReactToEnd();
    const Response* const written = std::exchange(written_, nullptr);
    if (!broken_) answers_.push_back(written->SerializeAsString());
    writer_->OnWriteDone(!broken_);
    return true;
  }

  void Finish(grpc::Status status) override { SetFinished(std::move(status)); }
  void SendInitialMetadata() override {}
  void Write(const Response* message, grpc::WriteOptions) override { written_ = message; }
  void WriteAndFinish(const Response*, grpc::WriteOptions, grpc::Status) override { Unused(); }

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  const std::unique_ptr<Request> request_ = std::make_unique<Request>();
  grpc::ServerWriteReactor<Response>* writer_ = nullptr;
  const Response* written_ = nullptr;  // of the write under way
  bool broken_ = false;
};

template <typename Request, typename Response>
class BidiExchange final : public Exchange,
                           public grpc::ServerCallbackReaderWriter<Request, Response> {
 public:
  using Exchange::Exchange;
  template <typename Handler>
  void Begin(const Handler& handler) {
    grpc::ServerBidiReactor<Request, Response>* const reactor = handler(&context_);
    reactor_ = stream_ = reactor;
    this->BindReactor(reactor);
  }
  // Does the server wait for a message?
  bool reading() const { return read_ != nullptr; }
  // The client's next message, or bytes that are none: then, as with gRPC, it was the last one.
  // False: that.
  bool Send(const std::string& bytes) {
    Request* const read = std::exchange(read_, nullptr);
    const bool good = read->ParseFromString(bytes);
    stream_->OnReadDone(good);
    return good;
  }
  bool React() override {
    if (this->done()) return false;
    if (written_ == nullptr) return finished() && ReactToEnd();
    answers_.push_back(std::exchange(written_, nullptr)->SerializeAsString());
    stream_->OnWriteDone(true);
    return true;
  }
  // What waited to be read or written will not be.
  void Break() {
    if (std::exchange(written_, nullptr) != nullptr) stream_->OnWriteDone(false);
    if (std::exchange(read_, nullptr) != nullptr) stream_->OnReadDone(false);
  }

  void Finish(grpc::Status status) override { SetFinished(std::move(status)); }
  void SendInitialMetadata() override {}
  void Read(Request* message) override { read_ = message; }
  void Write(const Response* message, grpc::WriteOptions) override { written_ = message; }
  void WriteAndFinish(const Response*, grpc::WriteOptions, grpc::Status) override { Unused(); }

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  grpc::ServerBidiReactor<Request, Response>* stream_ = nullptr;
  Request* read_ = nullptr;            // of the read under way
  const Response* written_ = nullptr;  // of the write under way
};

}  // namespace kvtier::fuzz
