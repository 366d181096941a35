#include "server/host_pool/manifest.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "server/host_pool/manifest_forger.h"

namespace kvtier {
namespace {

constexpr size_t kWord = sizeof(int64_t);

CacheManifest SomeManifest() {
  CacheManifest manifest;
  manifest.pool_id = "0123456789abcdef";
  manifest.cache = "kv";
  manifest.access = {.owner_uid = 1000, .sharing = {.uids = {1001, 1002}, .gids = {7}}};
  manifest.layout.block_size = 4;
  manifest.layout.block_count = 8;
  manifest.layout.dtype_tag = "bytes";
  manifest.layout.groups = {{.layers = {{.value_bytes = 64}}, .top_k = 4, .hot_size = 8}};
  manifest.part_offset_bytes = 4096;
  manifest.part_bytes = 8192;
  return manifest;
}

TEST(ManifestTest, ComesBackAsItWas) {
  const CacheManifest manifest = SomeManifest();
  const auto again = DecodeCacheManifest(EncodeManifest(manifest) + "whatever follows");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->pool_id, manifest.pool_id);
  EXPECT_EQ(again->cache, manifest.cache);
  EXPECT_EQ(again->access.owner_uid, 1000);
  EXPECT_EQ(again->access.sharing.uids, manifest.access.sharing.uids);
  EXPECT_EQ(again->access.sharing.gids, manifest.access.sharing.gids);
  EXPECT_EQ(again->layout.dtype_tag, "bytes");
  ASSERT_EQ(again->layout.groups.size(), 1);
  EXPECT_EQ(again->layout.groups[0].layers.size(), 1);
  EXPECT_EQ(again->part_offset_bytes, 4096);
  EXPECT_EQ(again->part_bytes, 8192);
}

// Numbers of things among them, whose bytes would be a small number only because they overflow.
TEST(ManifestTest, NumbersThatAreTooLargeAreDamage) {
  const std::string good = EncodeManifest(SomeManifest());
  int refused = 0;
  for (size_t at = kManifestHeaderBytes; at + kWord <= good.size(); ++at) {
    for (const int64_t value :
         {int64_t{-1}, int64_t{1} << 40, int64_t{1} << 61, (int64_t{1} << 61) + 1,
          std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
      std::string bytes = good;
      std::memcpy(&bytes[at], &value, kWord);
      ForgeChecksum(&bytes);
      const auto manifest = DecodeCacheManifest(bytes);
      if (!manifest.ok()) {
        EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss) << manifest.status();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 6);
}

TEST(ManifestTest, ATextOfNegativeLengthIsDamage) {
  CacheManifest manifest = SomeManifest();
  manifest.pool_id.clear();  // the first
  std::string bytes = EncodeManifest(manifest);
  ASSERT_TRUE(DecodeCacheManifest(bytes).ok());
  const int64_t length = -1;
  std::memcpy(&bytes[kManifestHeaderBytes], &length, kWord);
  ForgeChecksum(&bytes);
  EXPECT_EQ(DecodeCacheManifest(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ManifestTest, AByteThatIsWrongIsDamage) {
  const std::string good = EncodeManifest(SomeManifest());
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    EXPECT_FALSE(DecodeCacheManifest(bytes).ok()) << at;
    EXPECT_FALSE(DecodeCacheManifest(good.substr(0, at)).ok()) << at;
  }
}

}  // namespace
}  // namespace kvtier
