--[[
The gates of a node can no longer publish below a version.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] events
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] scope: the one the commit was made on, whichever of the moved scopes the node holds
ARGV[4] node  ARGV[5] version "term.epoch"  ARGV[6] epoch of that version  ARGV[7] payload
Returns the id of the event.
Errors: NEEDREGISTER tenant | scope, TERMMISMATCH, VERSIONCONFLICT <current> (not committed yet)
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local held = redis.call('HGET', KEYS[2], ARGV[3])
if not held then
  return refuse('NEEDREGISTER scope')
end
local scope = unpack_scope(held)
if tonumber(ARGV[6]) > tonumber(scope.epoch) then
  return refuse('VERSIONCONFLICT ' .. version(scope))
end
return emit(KEYS[1], KEYS[3], 'ack',
  'scope', ARGV[3], 'node', ARGV[4], 'version', ARGV[5], 'payload', ARGV[7])
