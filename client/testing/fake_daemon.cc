#include "client/testing/fake_daemon.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kvtier::client {
namespace {

int ListenAt(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd, 8), 0);
  return fd;
}

// One descriptor, or only a text if `descriptor` is -1.
void Answer(int connection, int descriptor) {
  char text[] = "no";
  iovec part = {.iov_base = text, .iov_len = 2};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* message = CMSG_FIRSTHDR(&header);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(message), &descriptor, sizeof(int));
  }
  sendmsg(connection, &header, MSG_NOSIGNAL);
}

}  // namespace

TempFolder::TempFolder() {
  char name[] = "/tmp/kvtier-test-XXXXXX";
  path_ = mkdtemp(name);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

FakeDaemon::FakeDaemon() : socket_path_(folder_.path() + "/d.sock"), cache_(SmallLayout()) {
  listener_ = ListenAt(socket_path_ + ".fd");
  descriptor_thread_ = std::thread([this] { ServeDescriptors(); });
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket_path_, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

FakeDaemon::~FakeDaemon() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    hang_ = false;
    changed_.NotifyAll();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  shutdown(listener_, SHUT_RDWR);
  descriptor_thread_.join();
  close(listener_);
}

void FakeDaemon::FailCalls(const grpc::Status& status, int32_t times) {
  MutexLock lock(&mutex_);
  call_status_ = status;
  failures_left_ = times;
}

void FakeDaemon::Hang(bool hang) {
  MutexLock lock(&mutex_);
  hang_ = hang;
  changed_.NotifyAll();
}

void FakeDaemon::FailOpening(const grpc::Status& status) {
  MutexLock lock(&mutex_);
  open_status_ = status;
}

void FakeDaemon::Tell(const v1::SessionEvent& event) {
  MutexLock lock(&mutex_);
  events_.push_back(event);
  changed_.NotifyAll();
}

void FakeDaemon::EndSessions(const grpc::Status& status) {
  MutexLock lock(&mutex_);
  ++ends_;
  end_status_ = status;
  changed_.NotifyAll();
}

std::vector<std::string> FakeDaemon::calls() {
  MutexLock lock(&mutex_);
  return calls_;
}

grpc::Status FakeDaemon::Enter(const std::string& call) {
  MutexLock lock(&mutex_);
  calls_.push_back(call);
  changed_.Wait(&mutex_, [this]() KVTIER_CLIENT_REQUIRES(mutex_) { return !hang_ || stop_; });
  if (failures_left_ == 0) return grpc::Status::OK;
  --failures_left_;
  return call_status_;
}

grpc::Status FakeDaemon::OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest* request,
                                     grpc::ServerWriter<v1::SessionEvent>* writer) {
  int32_t ends = 0;
  size_t told = 0;
  {
    MutexLock lock(&mutex_);
    ends = ends_;
    told = events_.size();
    calls_.push_back(absl::StrCat("OpenSession ", request->client_name()));
    changed_.Wait(&mutex_, [this]() KVTIER_CLIENT_REQUIRES(mutex_) { return !hang_ || stop_; });
    if (!open_status_.ok()) return open_status_;
  }
  v1::SessionEvent event;
  event.mutable_opened()->set_session_id("boot-1.session-1");
  event.mutable_opened()->set_boot_id("boot-1");
  event.mutable_opened()->set_daemon_version("0.0.0-fake");
  event.mutable_opened()->set_fd_socket_path(socket_path_ + ".fd");
  v1::Device* device = event.mutable_opened()->add_devices();
  device->set_uuid("CPU-0");
  device->set_backend("cpu");
  writer->Write(event);
  MutexLock lock(&mutex_);
  for (;;) {
    changed_.Wait(&mutex_, [&]() KVTIER_CLIENT_REQUIRES(mutex_) {
      return stop_ || ends_ > ends || events_.size() > told;
    });
    if (events_.size() > told) {
      const v1::SessionEvent next = events_[told++];
      mutex_.Unlock();
      writer->Write(next);
      mutex_.Lock();
      continue;
    }
    return stop_ ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopped") : end_status_;
  }
}

absl::Duration FakeDaemon::attach_patience() {
  MutexLock lock(&mutex_);
  return attach_patience_;
}

grpc::Status FakeDaemon::AttachCache(grpc::ServerContext* context,
                                     const v1::AttachCacheRequest* request,
                                     v1::AttachCacheResponse* response) {
  {
    MutexLock lock(&mutex_);
    attach_patience_ = absl::FromChrono(context->deadline()) - absl::Now();
  }
  *response = cache_.answer();
  return Enter(absl::StrCat("AttachCache ", request->cache()));
}

grpc::Status FakeDaemon::DetachCache(grpc::ServerContext*, const v1::DetachCacheRequest* request,
                                     v1::DetachCacheResponse*) {
  return Enter(absl::StrCat("DetachCache ", request->cache()));
}

grpc::Status FakeDaemon::AdmitRequest(grpc::ServerContext*, const v1::AdmitRequestRequest* request,
                                      v1::AdmitRequestResponse* response) {
  {
    MutexLock lock(&mutex_);
    response->set_region(regions_++);
  }
  return Enter(absl::StrCat("AdmitRequest ", request->request_id()));
}

grpc::Status FakeDaemon::ReleaseRequest(grpc::ServerContext*,
                                        const v1::ReleaseRequestRequest* request,
                                        v1::ReleaseRequestResponse* response) {
  response->set_blocks_freed(1);
  return Enter(absl::StrCat("ReleaseRequest ", request->request_id()));
}

grpc::Status FakeDaemon::AssignBlocks(grpc::ServerContext*, const v1::AssignBlocksRequest* request,
                                      v1::AssignBlocksResponse* response) {
  {
    MutexLock lock(&mutex_);
    for (int i = 0; i < request->count(); ++i) {
      response->add_block_ids(blocks_++);
      response->add_generations(1);
    }
  }
  return Enter(absl::StrCat("AssignBlocks ", request->request_id()));
}

grpc::Status FakeDaemon::RunSteps(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<v1::RunStepsResponse, v1::RunStepsRequest>* steps) {
  v1::RunStepsRequest request;
  int64_t ticket = 0;
  while (steps->Read(&request)) {
    const grpc::Status status = Enter(absl::StrCat("Step ", request.step_id()));
    v1::RunStepsResponse response;
    response.set_step_id(request.step_id());
    if (!status.ok()) {
      response.mutable_error()->set_code(status.error_code());
      response.mutable_error()->set_message(status.error_message());
      response.mutable_error()->set_reason("INPUT_MISMATCH");
      (*response.mutable_error()->mutable_metadata())["field"] = "step";
    } else if (request.has_backup()) {
      response.mutable_backup()->set_ticket(++ticket);
      response.mutable_backup()->set_completed(request.backup().wait());
    } else if (request.has_swap_in()) {
      response.mutable_swap_in()->set_ticket(++ticket);
    } else if (request.has_wait_ticket()) {
      response.mutable_wait_ticket()->set_completed_ticket(ticket);
    }  // anything else: an answer that is none
    steps->Write(response);
  }
  return grpc::Status::OK;
}

void FakeDaemon::ServeDescriptors() {
  for (;;) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    char token[256];
    const ssize_t size = recv(connection, token, sizeof(token), 0);
    if (size > 0) {
      const absl::StatusOr<int> fd = cache_.Redeem(std::string(token, size));
      Answer(connection, fd.ok() ? *fd : -1);
      if (fd.ok()) close(*fd);
    }
    close(connection);
  }
}

}  // namespace kvtier::client
