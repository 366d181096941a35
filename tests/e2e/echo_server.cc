#include "tests/e2e/echo_server.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"

namespace kvtier::e2e {
namespace {

class Admin final : public v1::KvTierAdmin::CallbackService {
 public:
  explicit Admin(const EchoAnswers* answers) : answers_(answers) {}
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const v1::GetStatsRequest* /*request*/,
                                     v1::GetStatsResponse* response) override {
    *response = answers_->stats;
    grpc::ServerUnaryReactor* const reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const EchoAnswers* const answers_;
};

class KvTier final : public v1::KvTier::CallbackService {
 public:
  explicit KvTier(const EchoAnswers* answers) : answers_(answers) {}
  grpc::ServerUnaryReactor* AssignBlocks(grpc::CallbackServerContext* call,
                                         const v1::AssignBlocksRequest* /*request*/,
                                         v1::AssignBlocksResponse* response) override {
    return Answer(call, answers_->assigned, response);
  }
  grpc::ServerUnaryReactor* FreeBlocks(grpc::CallbackServerContext* call,
                                       const v1::FreeBlocksRequest* /*request*/,
                                       v1::FreeBlocksResponse* response) override {
    return Answer(call, answers_->freed, response);
  }
  grpc::ServerUnaryReactor* InvalidateBlocks(grpc::CallbackServerContext* call,
                                             const v1::InvalidateBlocksRequest* /*request*/,
                                             v1::InvalidateBlocksResponse* response) override {
    return Answer(call, answers_->invalidated, response);
  }

 private:
  template <typename Response>
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* call, const Response& answer,
                                          Response* response) {
    *response = answer;
    grpc::ServerUnaryReactor* const reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  const EchoAnswers* const answers_;
};

}  // namespace

// Length and bytes of each.
std::string EchoAnswers::Serialize() const {
  std::string text;
  for (const google::protobuf::Message* message :
       std::initializer_list<const google::protobuf::Message*>{&stats, &assigned, &freed,
                                                               &invalidated}) {
    const std::string bytes = message->SerializeAsString();
    text += std::to_string(bytes.size()) + ":" + bytes;
  }
  return text;
}

EchoAnswers EchoAnswers::Parse(const std::string& text) {
  EchoAnswers answers;
  size_t at = 0;
  for (google::protobuf::Message* message : std::initializer_list<google::protobuf::Message*>{
           &answers.stats, &answers.assigned, &answers.freed, &answers.invalidated}) {
    const size_t colon = text.find(':', at);
    const size_t size = std::strtoul(text.c_str() + at, nullptr, 10);
    if (colon == std::string::npos || !message->ParseFromString(text.substr(colon + 1, size))) {
      std::abort();
    }
    at = colon + 1 + size;
  }
  return answers;
}

void ServeEcho(const std::string& socket_path, EchoAnswers answers) {
  Admin admin(&answers);
  KvTier kv_tier(&answers);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
  builder.RegisterService(&admin);
  builder.RegisterService(&kv_tier);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server != nullptr) server->Wait();
  std::fprintf(stderr, "no echo server at %s\n", socket_path.c_str());
  std::exit(1);
}

EchoProcess::EchoProcess(const std::string& folder, const EchoAnswers& answers)
    : socket_path_(folder + "/echo.sock") {
  const std::string path = folder + "/answers";
  std::ofstream(path, std::ios::binary) << answers.Serialize();
  std::vector<std::string> words = {"/proc/self/exe", "--echo=" + socket_path_,
                                    "--answers=" + path};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(words[0].c_str(), arguments.data());
    _exit(127);
  }
}

EchoProcess::~EchoProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace kvtier::e2e
