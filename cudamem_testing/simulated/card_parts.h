// The interface between the two parts of the library. They are compiled in parallel, each with few of torch's headers,
// which take most of the time: the interface with the allocator (simulated_card.cpp), and operators with all that needs
// torch's dispatcher or its headers (card_operators.cpp).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <vector>

namespace cudamem {

using StreamId = int64_t;
using Context = std::shared_ptr<void>;  // the stack of a record

// --- simulated_card.cpp ---

bool has_values();
// The allocator of the current card.
c10::Allocator& allocator_of_card();
void use_on(const c10::DataPtr& data, c10::Stream stream);
bool is_pinned(const void* at);
// The CPU's generator behind one of a card; behind the card's default one if none is given.
at::Generator generator_on_host(const at::Generator& given, c10::DeviceIndex card);

// --- card_operators.cpp ---

void put_operators();
void take_operators_out();
// Bytes of the workspaces of cuBLAS and cuBLASLt, and the card's multiprocessors.
struct KernelSettings {
  size_t blas, light;
  int64_t processors;
};
void set_kernels(const KernelSettings& settings);
void clear_workspaces();

// Stacks of Python and their frames: file, function and line of each frame, and the frames of each stack by index.
struct Frames {
  std::vector<std::string> files, functions;
  std::vector<int64_t> lines;
  std::vector<std::vector<uint64_t>> stacks;
};
Context gather_stack();
Frames frames_of(const std::vector<Context>& stacks);

}  // namespace cudamem
