// The C calls of journals, and whether a device can have one; only cpu_recorder.cpp includes it, below what they use of it.
#pragma once

// Returns whether torch has counters for this device of a c10::DeviceType; resets nothing.
EXPORT int32_t cudamem_has_device(int32_t type, int32_t index) {
  DeviceCounters<c10::DeviceAllocator> counters;
  try {
    if (!counters.find(type, index)) return 0;
    (void)counters.read();
  } catch (const std::exception&) {
    return 0;
  }
  return 1;
}

// Opens a journal of the ledger (`type` below 0) or of a device of this c10::DeviceType. Returns its handle; -1: there are
// too many, -2: torch has no counters for the device.
EXPORT int32_t cudamem_open_journal(int32_t type, int32_t index) {
  auto journal = std::make_unique<Journal>();
  if (type < 0) {
    const Lock lock(shared.mutex);
    journal->slot = shared.ledger.acquire_slot();
    if (journal->slot < 0) return -1;
  } else {
    try {
      if (!journal->counters.find(type, index)) return -2;
      (void)journal->counters.read();  // throws if there are none
    } catch (const std::exception&) {
      return -2;
    }
  }
  const int slot = journal->slot;
  const int32_t handle = journals.add(std::move(journal));
  if (handle < 0 && slot >= 0) {
    const Lock lock(shared.mutex);
    shared.ledger.release_slot(slot);
  }
  return handle;
}

// Notes the counters and the peak since the last note; returns the number of the note, from 0, or -1.
EXPORT int64_t cudamem_note(int32_t handle) {
  Journal* const journal = journals.get(handle);
  if (!journal) return -1;
  try {
    Note note;
    if (journal->slot >= 0) {
      Reading reading;
      const Lock lock(shared.mutex);
      if (!shared.ledger.read(journal->slot, true, &reading)) return -1;
      note = {reading.allocated, reading.peak, static_cast<int64_t>(reading.allocated_total),
              static_cast<int64_t>(reading.allocations), kUnknown, kUnknown, 0};
    } else {
      note = journals.note_device(*journal);
    }
    journal->notes.push_back(note);
  } catch (const std::exception&) {
    return -1;
  }
  return static_cast<int64_t>(journal->notes.size()) - 1;
}

// Copies all notes while there is room; returns how many there are.
EXPORT uint64_t cudamem_notes(int32_t handle, Note* out, uint64_t room) {
  const Journal* const journal = journals.get(handle);
  if (!journal) return 0;
  std::copy_n(journal->notes.begin(), std::min<uint64_t>(room, journal->notes.size()), out);
  return journal->notes.size();
}

// Sets `highest` (kPeaks of them) to the device's peaks since the last call, including those that notes have reset.
// Returns 0 if it is not a device's journal.
EXPORT int32_t cudamem_take_highest(int32_t handle, int64_t* highest) {
  Journal* const journal = journals.get(handle);
  if (!journal || journal->slot >= 0) return 0;
  try {
    (void)journal->fold();
  } catch (const std::exception&) {
    return 0;
  }
  journal->take_highest(highest);
  return 1;
}

EXPORT void cudamem_close_journal(int32_t handle) {
  Journal* const journal = journals.get(handle);
  if (!journal) return;
  if (journal->slot >= 0) {
    const Lock lock(shared.mutex);
    shared.ledger.release_slot(journal->slot);
  }
  journals.close(handle);
}
