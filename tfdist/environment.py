"""The environment variables that tfdist reads, by name; needs no TensorFlow."""

BACKUP_DIR = "TFDIST_BACKUP_DIR"
"""In a process of an elastic job, the folder in which the state is kept before the job ends."""

CONNECT_TIMEOUT = "TFDIST_CONNECT_TIMEOUT"
"""How many seconds a process waits for its peers at the start."""

DEVICES_PER_WORKER = "TFDIST_DEVICES_PER_WORKER"
"""How many virtual CPU devices a process makes."""

ELASTIC = "TFDIST_ELASTIC"
"""In a process of an elastic job, the descriptor of its connection to the launcher."""

ELASTIC_HOST = "TFDIST_ELASTIC_HOST"
"""In a process of an elastic job, the address of its machine."""

JOURNAL = "TFDIST_JOURNAL"
"""In a process of an elastic job, the path of the file that ranks that are started later follow."""

REDUCERS = "TFDIST_REDUCERS"
"""Under `horovodrun`, how many of the ranks, the last ones, only sum gradients."""

REPLAY = "TFDIST_REPLAY"
"""The path of the record that a script follows instead of training anew."""

SECRET = "TFDIST_SECRET"
"""The secret of launchers that meet at a rendezvous."""

SECRET_FILE = "TFDIST_SECRET_FILE"
"""The path of a file with that secret."""

STRICT_VERSIONS = "TFDIST_STRICT_VERSIONS"
"""With "1", releases of TensorFlow and Keras that tfdist was not tested with are refused."""

WATCH = "TFDIST_WATCH"
"""In a process of a job that is watched, the folder in which it says what it does."""
