// A graph as the core sees it while it is instrumented.
#pragma once

#include "program.h"

namespace amanda::reference {

class GraphView final : public GraphSite {
 public:
  explicit GraphView(const Program& program) : program_(program) {}

  Backend& backend() const override;
  void each_op(GraphVisitor& visitor) override;
  std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) override;  // a Program

 private:
  const Program& program_;
};

}  // namespace amanda::reference
