// The interface between the two parts of the library. They are compiled in parallel, each with few of torch's headers,
// which take most of the time: the interface with the allocator and the rules of temporary memory, which need no more of
// tensors than their shapes (simulated_card.cpp), and operators with all that needs torch's dispatcher, boxed values or
// tensors (card_operators.cpp).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <vector>

namespace cudamem {

using StreamId = int64_t;
inline int64_t processors = 132;  // of a card
using Context = std::shared_ptr<void>;  // the stack of a record

// --- simulated_card.cpp ---

bool has_values();
// The allocator of the current card.
c10::Allocator& allocator_of_card();
void use_on(const c10::DataPtr& data, c10::Stream stream);
bool is_pinned(const void* at);
// The CPU's generator behind one of a card; behind the card's default one if none is given.
at::Generator generator_on_host(const at::Generator& given, c10::DeviceIndex card);

using Sizes = std::vector<int64_t>;
// Memory that a kernel uses while it runs; what it allocates last it frees first.
void passing(const Sizes& sizes);
struct Argument;
using Rule = void (*)(const std::vector<Argument>&);
// What says which temporary memory an operator takes; null for those that take none.
Rule rule_of(const std::string& name);

// --- card_structured.cpp ---

void put_structured();

// --- card_operators.cpp ---

void put_operators();
void take_operators_out();
// Kernels that torch's functions choose: of attention, for a card of the architectures, and of recurrent layers.
void choose_kernels(bool hopper, bool ampere);
void forget_kernels();

}  // namespace cudamem
