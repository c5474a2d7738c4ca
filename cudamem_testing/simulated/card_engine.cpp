// Queues and threads of torch's autograd engine for cards that are added after its first run: it has one of each for every
// device that existed then. The headers take longer to compile than everything else, and few processes need this.
#include <torch/csrc/autograd/engine.h>

#include <thread>

namespace {

struct Engine : torch::autograd::Engine {
  static void add_cards(size_t count) {
    auto& engine = torch::autograd::Engine::get_default_engine();
    engine.initialize_device_threads_pool();
    auto& queues = engine.*(&Engine::device_ready_queues_);
    while (queues.size() < count) {
      queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
      const int index = static_cast<int>(queues.size()) - 1;
      std::thread(&torch::autograd::Engine::thread_init, &engine, index, queues.back(), true).detach();
    }
  }
};

}  // namespace

// No backward pass may run meanwhile.
extern "C" __attribute__((visibility("default"))) void cudamem_card_engine(int64_t count) {
  Engine::add_cards(static_cast<size_t>(count));
}
