// Kinds of events, as in record.py.
#pragma once

#include <cstdint>

namespace cudamem {

constexpr uint8_t kAlloc = 0, kSegmentAlloc = 3, kSegmentFree = 4, kSegmentMap = 5, kSegmentUnmap = 6;

}  // namespace cudamem
