// The diagnosis of calls that only C and C++ can make: that the cause is of the argument that the first line names.
#include <gtest/gtest.h>

#include "op_case.h"

namespace ropepool::test {
namespace {

Error refusal_of(const OpCase& c) {
  const auto result = c.run();
  EXPECT_FALSE(result.ok());
  return result.error();
}

OpCase valid_case() { return OpCase({DType::f32, 4, 8, 2, 64, 16}); }

TEST(Diagnosis, ANullPointerIsNotExplainedByTheStridesOfAnother) {
  OpCase c = valid_case();
  c.args.q.data = nullptr;
  c.args.v.strides = {256, 128, 2};
  const Error error = refusal_of(c);
  EXPECT_EQ(error.argument(), "q");
  EXPECT_EQ(error.cause(), "");
  EXPECT_NE(error.hint().find("q.data"), std::string::npos) << error.hint();
}

TEST(Diagnosis, AMissingOutputIsNotExplainedByTheShapeOfTheOther) {
  OpCase c = valid_case();
  c.args.q_out = {};
  c.args.k_out.shape = {3, 2, 64};
  const Error error = refusal_of(c);
  EXPECT_EQ(error.argument(), "q_out");
  EXPECT_EQ(error.cause(), "");
}

TEST(Diagnosis, AnOutputInAnotherInputIsNotExplainedByThePools) {
  OpCase c = valid_case();
  c.args.q_out = c.args.q;
  c.args.v = c.args.q;
  c.args.v.shape = c.args.k.shape;
  c.args.v_pool = c.args.k_pool;
  const Error error = refusal_of(c);
  EXPECT_EQ(error.argument(), "q_out");
  EXPECT_EQ(error.cause().find("pool"), std::string::npos) << error.cause();
  EXPECT_NE(error.cause().find("v reaches into q"), std::string::npos) << error.cause();
}

TEST(Diagnosis, TheOddOneOfThreeDtypesIsBlamed) {
  OpCase c = valid_case();
  c.args.q.dtype = DType::f64;
  const Error error = refusal_of(c);
  EXPECT_EQ(error.code(), "RP010");
  EXPECT_EQ(error.argument(), "q");
  EXPECT_EQ(error.expected(), "float32");
  EXPECT_EQ(error.actual(), "float64");
}

}  // namespace
}  // namespace ropepool::test
