--[[
Publish a receipt in the stream, and keep it beside the idempotency key it answers.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] events  KEYS[4] record of the idempotency key (commit.lua)
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] scope  ARGV[4] node  ARGV[5] version "term.epoch"  ARGV[6] receipt, JSON
Returns the id of the event. A record that has ended is not brought back.
Errors: NEEDREGISTER tenant | scope, TERMMISMATCH
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 0 then
  return refuse('NEEDREGISTER scope')
end
if redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('HSET', KEYS[4], 'receipt', ARGV[6])
end
return emit(KEYS[1], KEYS[3], 'receipt',
  'scope', ARGV[3], 'node', ARGV[4], 'version', ARGV[5], 'payload', ARGV[6])
