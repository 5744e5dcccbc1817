// One graph's artifacts: built once for a toolset and a signature, while other threads wait.
#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/base/wait_hooks.h"
#include "amanda/driver/engine.h"
#include "amanda/error.h"

namespace amanda {

struct ArtifactCache::Table {
  struct Entry {
    ToolsetPtr toolset;
    ArtifactPtr artifact;     // null while it is being built
    std::thread::id builder;  // meanwhile
  };
  using Key = std::pair<uint64_t, std::string>;  // of the toolset, signature

  template <class Fits>
  std::vector<Entry> take(const Fits& fits) {  // of those that are built
    std::vector<Entry> taken;
    for (auto it = entries.begin(); it != entries.end();) {
      auto next = std::next(it);
      if (it->second.artifact && fits(it->second)) {
        taken.push_back(std::move(it->second));
        entries.erase(it);
      }
      it = next;
    }
    return taken;
  }

  /// Waits until no thread builds the entry, with the lock released around the wait hooks.
  void wait(std::unique_lock<std::mutex>& lock, const Key& key) {
    lock.unlock();
    const WaitHooks& hooks = wait_hooks();
    void* token = hooks.before ? hooks.before() : nullptr;
    lock.lock();
    built.wait(lock, [&] {
      auto now = entries.find(key);
      return now == entries.end() || now->second.artifact;
    });
    lock.unlock();
    if (hooks.after) hooks.after(token);
    lock.lock();
  }

  // A forked child has one thread: entries that other threads were building are never finished there.
  static void after_fork(void* table) {
    auto& self = *static_cast<Table*>(table);
    new (&self.built) std::condition_variable;
    std::erase_if(self.entries, [](const auto& entry) {
      return !entry.second.artifact && entry.second.builder != std::this_thread::get_id();
    });
  }

  Mutex mutex{&after_fork, this};
  std::condition_variable built;
  std::map<Key, Entry> entries;
  uint64_t hits = 0, builds = 0;
};

namespace {

/// An entry that this thread builds. The threads that wait for it continue even if that fails.
template <class Table>
struct Building {
  ~Building() {
    std::lock_guard lock(table.mutex);
    if (made) {
      table.entries[key].artifact = made;
    } else {
      table.entries.erase(key);
    }
    table.built.notify_all();
  }
  Table& table;
  const Table::Key& key;
  ArtifactPtr made;
};

}  // namespace

ArtifactCache::ArtifactCache() : table_(std::make_unique<Table>()) {}
ArtifactCache::~ArtifactCache() = default;

ArtifactPtr ArtifactCache::get(const ToolsetPtr& toolset, const std::string& signature, GraphSite& graph) {
  if (!toolset) {
    throw Error(fmt::format("[graph] the driver '{}' asked for an artifact of no toolset; run the graph as it is",
                            graph.backend().name_space()));
  }
  Table& table = *table_;
  const Table::Key key(toolset->key(), signature);
  std::vector<Table::Entry> dropped;  // destroyed outside the lock
  {
    std::unique_lock lock(table.mutex.native());
    for (auto found = table.entries.find(key); found != table.entries.end(); found = table.entries.find(key)) {
      if (found->second.artifact) {
        ++table.hits;
        return found->second.artifact;
      }
      if (found->second.builder == std::this_thread::get_id()) {
        throw Error(
            fmt::format("[graph] the driver '{}' asked for an artifact while this thread builds it; "
                        "each_op() and lower() must not run the graph that they show",
                        graph.backend().name_space()));
      }
      table.wait(lock, key);
    }
    dropped = table.take([](const Table::Entry& entry) { return entry.toolset->is_over(); });
    table.entries[key] = {toolset, nullptr, std::this_thread::get_id()};
    ++table.builds;
  }
  Building<Table> building{table, key, nullptr};
  building.made = Engine::instrument(*toolset, graph);
  return building.made;
}

void ArtifactCache::clear() {
  std::vector<Table::Entry> dropped;  // destroyed outside the lock
  std::lock_guard lock(table_->mutex);
  dropped = table_->take([](const Table::Entry&) { return true; });
}

ArtifactCache::Info ArtifactCache::info() const {
  std::lock_guard lock(table_->mutex);
  return {table_->hits, table_->builds, table_->entries.size()};
}

}  // namespace amanda
