# What CMake reads before Horovod's own lines.

# Without debugging information, and without a second Gloo, which is for another C++ standard than
# TensorFlow's, the build takes half of the time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
cmake_language(DEFER CALL set_target_properties gloo PROPERTIES EXCLUDE_FROM_ALL ON)

# Mends faults of Horovod 0.28.1, and of the Gloo in it, by which a process ends, or waits long or for
# ever, when a connection breaks. Elastic jobs need that.
macro(mend file old new)
  set(path "${PROJECT_SOURCE_DIR}/${file}")
  file(READ "${path}" code)
  string(FIND "${code}" "${old}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "This is another version than 0.28.1. Received: ${path}")
  endif()
  string(REPLACE "${old}" "${new}" code "${code}")
  file(WRITE "${path}" "${code}")
endmacro()

# Those who wait for a message that was sent or received in part are not told.
set(pair third_party/gloo/gloo/transport/tcp/pair.cc)
mend(${pair} "  for (auto& op : tx_) {
    if (op.buf" "\
  auto fail = [&ex](const WeakNonOwningPtr<UnboundBuffer>& begun) {
    NonOwningPtr<UnboundBuffer> buffer(begun);
    if (buffer) {
      buffer->signalException(ex);
    }
  };
  fail(rx_.ubuf);
  for (auto& op : tx_) {
    fail(op.ubuf);
    if (op.buf")

# A connection is not looked at any more when a receiver has given up in the middle of a message.
mend(${pair} "    if (nbytes < 0) {
" "\
    if (nbytes < 0) {
      if (rx_.ubuf && !buf) {
        signalException(GLOO_ERROR_MSG(\"A receiver has given up \", peer_.str()));
      }
")

# A message may have another length than what is waited for, when it is one of an operation that this
# process has given up. The process ends when the message is longer, and takes it when it is shorter.
mend(${pair} "    GLOO_ENFORCE_LE(op.preamble.length, op.nbytes);
" "\
    if (op.preamble.length != op.nbytes) {
      signalException(GLOO_ERROR_MSG(\"Unexpected message from \", peer_.str()));
      return -1;
    }
")

# An operation that begins just when Horovod ends is never told of that.
set(queue horovod/common/tensor_queue)
mend(${queue}.h "  void FinalizeTensorQueue(const Status& status);
" "\
  void FinalizeTensorQueue(const Status& status);
  void Open() {
    std::lock_guard<std::mutex> guard(mutex_);
    closed_ = false;
  }
")
mend(${queue}.h "protected:
" "\
protected:
  bool closed_ = false;
")
mend(${queue}.cc "  std::lock_guard<std::mutex> guard(mutex_);
  if (tensor_table_" "\
  std::lock_guard<std::mutex> guard(mutex_);
  if (closed_) {
    return SHUT_DOWN_ERROR;
  }
  if (tensor_table_")
mend(${queue}.cc "  std::lock_guard<std::mutex> guard(mutex_);

  for" "\
  std::lock_guard<std::mutex> guard(mutex_);
  if (closed_) {
    return SHUT_DOWN_ERROR;
  }
  for")
mend(${queue}.cc "  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& e" "\
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  for (auto& e")
mend(horovod/common/process_set.cc "  initialization_done = true;
" "\
  tensor_queue.Open();
  initialization_done = true;
")

# The next operation uses connections on which one has failed, in the middle of a message.
set(operations horovod/common/operations.cc)
mend(${operations} "    status = Status::UnknownError(ex.what());
  }

  if (!status.in_progress()) {
    for (auto& e : entries) {
      timeline.End(e.tensor_name, status.ok() ? e.output : nullptr);
      e.FinishWithCallback(status);
    }
  }
" "\
    for (auto& e : entries) {
      timeline.End(e.tensor_name, nullptr);
      e.FinishWithCallback(Status::UnknownError(ex.what()));
    }
    throw;
  }

  if (!status.in_progress()) {
    for (auto& e : entries) {
      timeline.End(e.tensor_name, status.ok() ? e.output : nullptr);
      e.FinishWithCallback(status);
    }
  }
")

# The process ends when Horovod cannot begin, for example as another rank dies at that moment.
mend(${operations} "        std::thread(BackgroundThreadLoop, std::ref(horovod_global));
" "\
        std::thread([] {
          try {
            BackgroundThreadLoop(horovod_global);
          } catch (const std::exception& ex) {
            LOG(ERROR) << \"Horovod could not be initialized: \" << ex.what();
            horovod_global.process_set_table.Finalize(global_gloo_context, SHUT_DOWN_ERROR);
            global_gloo_context.Finalize();
            horovod_global.initialization_failed = true;
          }
        });
")
mend(${operations} "    horovod_global.initialization_done = false;
    horovod_global.background_thread" "\
    horovod_global.initialization_done = false;
    horovod_global.initialization_failed = false;
    horovod_global.background_thread")

# How tfdist tells that Horovod was mended.
mend(${operations} "extern \"C\" {
" "\
extern \"C\" {

int horovod_mended_by_tfdist() { return 1; }
")
