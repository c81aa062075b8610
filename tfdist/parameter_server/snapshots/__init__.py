"""What is done about a parameter server that dies: all go back to a snapshot.

A snapshot has the values of all variables as they were after one update. When a server dies, a part
of this update's successors is gone, and the weights that are left on other servers belong to no
version that is still whole. So all variables on all servers get the values of the snapshot, not
only those on the server that died. The updates since then are lost, and their number is said.

- `variables`: which variables there are;
- `folder`: where they are kept;
- `files`: how their values are written and read;
- `servers`: which servers are lost, and how the chief connects to them when they are back;
- `snapshots`: when a snapshot is taken, and how training goes back to it.
"""
