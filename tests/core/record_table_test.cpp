// The records of a scope, without a scope around them.
#include "record_table.h"

#include <gtest/gtest.h>

#include <memory>

#include "amanda/scope_options.h"

namespace amanda {
namespace {

RecordPtr make() { return std::make_shared<Record>(); }

TEST(RecordTableTest, RecordsOfTwoDriversAreTwo) {
  RecordTable records;
  const RecordPtr one = records.get({0, 7}, make), other = records.get({1, 7}, make);
  EXPECT_NE(one, other);
  EXPECT_EQ(records.find({0, 7}), one);
  EXPECT_EQ(records.size(), 2u);
  EXPECT_EQ(records.take(7).size(), 2u);
  EXPECT_EQ(records.size(), 0u);
}

TEST(RecordTableTest, ARecordWithoutAnIdIsNotKept) {
  RecordTable records;
  EXPECT_NE(records.get({0, 0}, make), nullptr);
  EXPECT_EQ(records.size(), 0u);
  EXPECT_EQ(records.find({0, 0}), nullptr);
}

TEST(RecordTableTest, TakenRecordsGoOutsideTheLock) {
  RecordTable records;
  std::weak_ptr<Record> gone = records.get({0, 7}, make);
  auto taken = records.take(0);
  EXPECT_FALSE(gone.expired());
  EXPECT_TRUE(records.mutex().try_lock());
  records.mutex().unlock();
  taken.clear();
  EXPECT_TRUE(gone.expired());
}

TEST(RecordTableTest, TheOneNotLookedUpGoesFirst) {
  RecordTable records;
  for (OpId id = 1; id <= kMaxEmptyRecords; ++id) records.get({0, id}, make);
  records.find({0, 1});
  records.get({0, kMaxEmptyRecords + 1}, make);
  EXPECT_NE(records.find({0, 1}), nullptr);
  EXPECT_EQ(records.find({0, 2}), nullptr);
  EXPECT_EQ(records.size(), kMaxEmptyRecords);
}

}  // namespace
}  // namespace amanda
